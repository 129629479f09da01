-- release.lua: inflight -> due, now, tries unchanged
--
-- KEYS[1]     due       zset, id -> due time in ms
-- KEYS[2]     inflight  zset, id -> lease end in ms
-- ARGV[1]     channel   for wake-ups
-- ARGV[2]     wake      what to say there
-- ARGV[3...]  id, lease end in ms, the time it was due in ms: three for each claim
--
-- Returns  one for each claim: 1 settled, 0 lease lost (nothing changed)
-- Cost     O(log N) a claim, N items waiting; one PUBLISH

local out, released = {}, false
for i = 3, #ARGV, 3 do
  local id = ARGV[i]
  local score = call('ZSCORE', KEYS[2], id)
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    call('ZREM', KEYS[2], id)
    call('ZADD', KEYS[1], tonumber(ARGV[i + 2]), id)
    out[#out + 1], released = 1, true
  else
    out[#out + 1] = 0
  end
end
if released then call('PUBLISH', ARGV[1], ARGV[2]) end
return out
