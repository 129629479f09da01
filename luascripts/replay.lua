-- replay.lua: dead -> due, with no attempts
--
-- KEYS[1..3]  due        zset, id -> due time in ms, one a lane
-- KEYS[4..6]  inflight   zset, id -> lease end in ms, one a lane
-- KEYS[7]     msg        hash, id -> record
-- KEYS[8]     tries      hash, id -> tries
-- KEYS[9]     dead       zset, id -> time of death in ms
-- KEYS[10]    deadmsg    hash, id -> letter
-- KEYS[11]    deadcount  hash, reason -> letters
-- KEYS[12]    done:a     hash, id -> tombstone
-- KEYS[13]    done:b     hash, id -> tombstone
-- ARGV[1]     channel    for wake-ups
-- ARGV[2]     shard      its number, for wake-ups
-- ARGV[3]     force      '1' to replace a pending message of the same id, else '0'
-- ARGV[4...]  id, time of death in ms, lane (1..3), due in ms, marks, source, offset,
--             message: eight for each letter
--
-- Returns  one for each letter: 0 replayed, 1 gone or another by now, 2 its id is pending
--          or in flight (nothing changed in either)
-- Cost     O(log N) a letter, N items waiting; one PUBLISH a lane

local done = tombstones(KEYS[12], KEYS[13])
local wake, out = {}, {}
for i = 4, #ARGV, 8 do
  local id, lane = ARGV[i], tonumber(ARGV[i + 2])
  local died = call('ZSCORE', KEYS[9], id)
  local record = call('HGET', KEYS[7], id)
  if not died or tonumber(died) ~= tonumber(ARGV[i + 1]) then
    out[#out + 1] = 1
  elseif record and ARGV[3] ~= '1' then
    out[#out + 1] = 2
  else
    -- Every position known of the id goes on being known, those of a later schedule too.
    local marks = record and marks_of(record)
    if not marks then
      local tomb = done.get(id)
      marks = tomb and string.sub(tomb, 3) or ARGV[i + 4]
    end
    drop_letter(KEYS[9], KEYS[10], KEYS[11], id)
    for l = 1, 3 do
      call('ZREM', KEYS[l], id)
      call('ZREM', KEYS[l + 3], id)
    end
    call('HDEL', KEYS[8], id)
    call('HSET', KEYS[7], id, '1 ' .. add_mark(id, marks, ARGV[i + 5], ARGV[i + 6]) .. '\n' .. ARGV[i + 7])
    call('ZADD', KEYS[lane], ARGV[i + 3], id)
    wake[lane] = true
    out[#out + 1] = 0
  end
end
for lane in pairs(wake) do call('PUBLISH', ARGV[1], lane .. ' ' .. ARGV[2]) end
return out
