-- schedule.lua: (none | due | inflight) -> due
--
-- KEYS[1..3]  due       zset, id -> due time in ms, one a lane
-- KEYS[4..6]  inflight  zset, id -> lease end in ms, one a lane
-- KEYS[7]     msg       hash, id -> record
-- KEYS[8]     tries     hash, id -> tries
-- KEYS[9]     done:a    hash, id -> tombstone
-- KEYS[10]    done:b    hash, id -> tombstone
-- ARGV[1]     channel   for wake-ups
-- ARGV[2]     shard     its number, for wake-ups
-- ARGV[3]     now       ms, '' for Redis's own clock
-- ARGV[4]     ceiling   ms, the latest time that the host's clock allows
-- ARGV[5]     window    ms, how long a tombstone lives at least
-- ARGV[6...]  id, lane (1..3), due in ms, record: four for each item
--
-- Returns  one for each item: 0 scheduled, 1 replaced, 2 duplicate or stale (nothing changed,
--          but that the tombstone by which it was known lives on)
-- Cost     O(log N) an item, N items waiting; one PUBLISH a lane where the earliest moved forward

local done = tombstones(KEYS[9], KEYS[10])
local heads, wake, out = {}, {}, {}
local ids, tombs, known = {}, nil, {}
for i = 6, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end

-- The marks of the records that the batch finds, and for an id that it has twice of the one
-- that it has left. Not the records: all of them at once may be more than Redis has room for.
local there = {}
each_value(KEYS[7], ids, function(n, record) there[ids[n]] = record and (marks_of(record) or '') end)

-- What is new is written at the end, all of a lane in one go, unless its id comes again.
local fresh, sets, last = {}, {}, {}
for n, id in ipairs(ids) do last[id] = n end

for n, id in ipairs(ids) do
  local i = 2 + 4 * n
  local lane, due, record = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]
  local pending = there[id]
  local marks = pending
  if not marks then
    tombs = tombs or done.get_all(ids)
    marks = tombs[id] and string.sub(tombs[id], 3) or ''
  end
  -- The record comes with the marks of an id that is not known. Those known are added.
  local duplicate = false
  if marks ~= '' then
    local own = marks_of(record)
    duplicate = marks == own
    if not duplicate then
      local source, offset = string.match(pairs_of(id, own), '(%S+) (%d+)')
      duplicate = seen(id, marks, source, offset)
      marks = add_mark(id, marks, source, offset)
      if not duplicate and marks ~= own then
        record = '1 ' .. marks .. string.sub(record, (string.find(record, '\n', 1, true)))
      end
    end
  end
  if duplicate then
    if not pending then known[#known + 1] = id end
    out[#out + 1] = 2
  else
    if not heads[lane] then
      heads[lane] = tonumber(call('ZRANGE', KEYS[lane], 0, 0, 'WITHSCORES')[2] or math.huge)
    end
    if pending or last[id] ~= n then
      -- The first write needs memory, so that a full Redis refuses the batch as a whole.
      call('HSET', KEYS[7], id, record)
      if pending then
        for l = 1, 3 do
          call('ZREM', KEYS[l], id)
          call('ZREM', KEYS[l + 3], id)
        end
        call('HDEL', KEYS[8], id)
      end
      call('ZADD', KEYS[lane], ARGV[i + 2], id)
      there[id] = marks_of(record)
    else
      sets[lane] = sets[lane] or {}
      local f, s = #fresh, sets[lane]
      fresh[f + 1], fresh[f + 2] = id, record
      s[#s + 1] = ARGV[i + 2]
      s[#s + 1] = id
    end
    if due < heads[lane] then
      heads[lane], wake[lane] = due, true
    end
    out[#out + 1] = pending and 1 or 0
  end
end
if #fresh > 0 then call('HSET', KEYS[7], unpack(fresh)) end
for lane, set in pairs(sets) do call('ZADD', KEYS[lane], unpack(set)) end

-- Where nothing else was written, a full Redis refuses this too, and the source waits.
done.renew(allowed_ms(ARGV[3], ARGV[4]), tonumber(ARGV[5]), known, tombs)
for lane in pairs(wake) do call('PUBLISH', ARGV[1], lane .. ' ' .. ARGV[2]) end
return out
