-- repair.lua: lost -> due
--
-- KEYS[1..3]  due       zset, id -> due time in ms, one a lane
-- KEYS[4..6]  inflight  zset, id -> lease end in ms, one a lane
-- KEYS[7]     msg       hash, id -> record
-- ARGV[1]     channel   for wake-ups
-- ARGV[2]     shard     its number, for wake-ups
-- ARGV[3...]  id, lane (1..3), due in ms: three for each item
--
-- Returns  one for each item: 1 repaired, 0 it stands in a set, or is gone (nothing changed)
-- Cost     O(log N) an item, N items waiting; one PUBLISH a lane

local sets = {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]}
local out, wake = {}, {}
for i = 3, #ARGV, 3 do
  local id, lane = ARGV[i], tonumber(ARGV[i + 1])
  local stands = call('HEXISTS', KEYS[7], id) == 0
  for _, set in ipairs(sets) do stands = stands or call('ZSCORE', set, id) end
  if stands then
    out[#out + 1] = 0
  else
    call('ZADD', KEYS[lane], ARGV[i + 2], id)
    wake[lane] = true
    out[#out + 1] = 1
  end
end
for lane in pairs(wake) do call('PUBLISH', ARGV[1], lane .. ' ' .. ARGV[2]) end
return out
