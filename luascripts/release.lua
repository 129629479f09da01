-- release.lua: inflight -> due, now, tries unchanged
--
-- KEYS[1]     due       zset, id -> due time in ms
-- KEYS[2]     inflight  zset, id -> lease end in ms
-- KEYS[3]     msg       hash, id -> record
-- ARGV[1]     channel   for wake-ups
-- ARGV[2]     wake      what to say there
-- ARGV[3...]  id, lease end in ms, marks, the time it was due in ms: four for each claim
--
-- Returns  one for each claim: 1 settled, 0 lease lost (nothing changed)
-- Cost     O(log N) a claim, N items waiting; one PUBLISH

local out, released = {}, false
for i = 3, #ARGV, 4 do
  if owns(KEYS[2], KEYS[3], ARGV[i], ARGV[i + 1], ARGV[i + 2]) then
    call('ZREM', KEYS[2], ARGV[i])
    call('ZADD', KEYS[1], ARGV[i + 3], ARGV[i])
    out[#out + 1], released = 1, true
  else
    out[#out + 1] = 0
  end
end
if released then call('PUBLISH', ARGV[1], ARGV[2]) end
return out
