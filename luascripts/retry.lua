-- retry.lua: inflight -> due, later, one more failed attempt
--
-- KEYS[1]     due       zset, id -> due time in ms
-- KEYS[2]     inflight  zset, id -> lease end in ms
-- KEYS[3]     tries     hash, id -> "<failed> <lost>"
-- ARGV[1]     now       ms, '' for Redis's own clock
-- ARGV[2...]  id, lease end in ms, wait in ms, '1' if not before the lease ends else '0':
--             four for each claim
--
-- Returns  one for each claim: 1 settled, 0 lease lost (nothing changed)
-- Cost     O(log N) a claim, N items waiting

local now = now_ms(ARGV[1])
local out = {}
for i = 2, #ARGV, 4 do
  local id, lease_end = ARGV[i], tonumber(ARGV[i + 1])
  local score = call('ZSCORE', KEYS[2], id)
  if score and tonumber(score) == lease_end then
    local at = now + tonumber(ARGV[i + 2])
    if ARGV[i + 3] == '1' and at <= lease_end then at = lease_end + 1 end
    local failed, lost = tries_of(KEYS[3], id)
    call('ZREM', KEYS[2], id)
    call('ZADD', KEYS[1], at, id)
    call('HSET', KEYS[3], id, (failed + 1) .. ' ' .. lost)
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
