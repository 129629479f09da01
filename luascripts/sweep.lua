-- sweep.lua: done -> (none), dead -> (none), by age
--
-- KEYS[1]  dead       zset, id -> time of death in ms
-- KEYS[2]  deadmsg    hash, id -> letter
-- KEYS[3]  deadcount  hash, reason -> letters
-- KEYS[4]  done:a     hash, id -> tombstone
-- KEYS[5]  done:b     hash, id -> tombstone
-- ARGV[1]  now        ms, '' for Redis's own clock
-- ARGV[2]  ceiling    ms, the latest time that the host's clock allows
-- ARGV[3]  window     ms, how long a tombstone lives at least
-- ARGV[4]  retention  ms, how long a dead letter is kept, 0 for ever
-- ARGV[5]  limit      dead letters at the most
--
-- Returns  the number of dead letters dropped; the limit says that there may be more
-- Cost     O(limit * log D), D dead letters

local now = allowed_ms(ARGV[1], ARGV[2])
local window, retention = tonumber(ARGV[3]), tonumber(ARGV[4])

-- An idle shard lets its tombstones go too, the last of them after two windows.
local done = tombstones(KEYS[4], KEYS[5])
if done.since > 0 and done.since + 2 * window <= now then
  call('UNLINK', KEYS[4], KEYS[5])
elseif done.since > 0 and done.since + window <= now then
  call('UNLINK', done.older)
end

if retention == 0 then return 0 end
local old = call('ZRANGEBYSCORE', KEYS[1], '-inf', now - retention, 'LIMIT', 0, tonumber(ARGV[5]))
for _, id in ipairs(old) do drop_letter(KEYS[1], KEYS[2], KEYS[3], id) end
return #old
