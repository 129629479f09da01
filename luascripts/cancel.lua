-- cancel.lua: due -> done, (none) -> done where its schedule may be still to come
--
-- KEYS[1..3]  due       zset, id -> due time in ms, one a lane
-- KEYS[4..6]  inflight  zset, id -> lease end in ms, one a lane
-- KEYS[7]     msg       hash, id -> record
-- KEYS[8]     tries     hash, id -> tries
-- KEYS[9]     done:a    hash, id -> tombstone
-- KEYS[10]    done:b    hash, id -> tombstone
-- KEYS[11]    dead      zset, id -> time of death in ms
-- ARGV[1]     now       ms, '' for Redis's own clock
-- ARGV[2]     ceiling   ms, the latest time that the host's clock allows
-- ARGV[3]     window    ms, how long a tombstone lives at least
-- ARGV[4...]  id, source, offset, '1' if by API else '0': four for each item
--
-- Returns  one for each item: 0 cancelled, 1 duplicate or stale (nothing changed, but that
--          the tombstone by which it was known lives on), too late since 2 in flight,
--          3 delivered, 4 cancelled before, 5 dead; 6 unknown
-- Cost     O(log N) an item, N items waiting

local now, window = allowed_ms(ARGV[1], ARGV[2]), tonumber(ARGV[3])
local done = tombstones(KEYS[9], KEYS[10])
local too_late = {d = 3, c = 4, x = 5}
local ids, known, out = {}, {}, {}
for i = 4, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local tombs = done.get_all(ids)
local function put(id, tomb)
  tombs[id] = tomb
  done.put(now, window, id, tomb)
end

for i = 4, #ARGV, 4 do
  local id, source, offset, by_api = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3] == '1'
  local record = call('HGET', KEYS[7], id)
  local reply
  if record then
    local marks = marks_of(record) or ''
    if seen(id, marks, source, offset) then
      reply = 1
    elseif call('ZSCORE', KEYS[4], id) or call('ZSCORE', KEYS[5], id) or call('ZSCORE', KEYS[6], id) then
      reply = 2
    else
      for l = 1, 3 do call('ZREM', KEYS[l], id) end
      call('HDEL', KEYS[7], id)
      call('HDEL', KEYS[8], id)
      put(id, 'c ' .. add_mark(id, marks, source, offset))
      reply = 0
    end
  else
    local tomb = tombs[id] or ''
    local state, marks = string.sub(tomb, 1, 1), string.sub(tomb, 3)
    -- A letter is dead as long as it is there, and not any longer.
    if state == 'x' or state == '' then
      state = call('ZSCORE', KEYS[11], id) and 'x' or ''
    end
    if seen(id, marks, source, offset) then
      -- Changes nothing, but lets the script go on where Redis is full.
      call('HDEL', KEYS[8], id)
      known[#known + 1] = id
      reply = 1
    else
      reply = too_late[state] or 6
      -- An older copy of the schedule must not come in behind its cancel.
      if not by_api then
        call('HDEL', KEYS[8], id)
        put(id, (state == '' and 'c' or state) .. ' ' .. add_mark(id, marks, source, offset))
      end
    end
  end
  out[#out + 1] = reply
end
done.renew(now, window, known, tombs)
return out
