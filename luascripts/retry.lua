-- retry.lua: inflight -> due, later, one more failed attempt
--
-- KEYS[1]     due       zset, id -> due time in ms
-- KEYS[2]     inflight  zset, id -> lease end in ms
-- KEYS[3]     msg       hash, id -> record
-- KEYS[4]     tries     hash, id -> tries
-- ARGV[1]     now       ms, '' for Redis's own clock
-- ARGV[2...]  id, lease end in ms, marks, the time it was due in ms, wait in ms, '1' if not
--             before the lease ends else '0', why it failed: seven for each claim
--
-- Returns  one for each claim: 1 settled, 0 lease lost (nothing changed)
-- Cost     O(log N) a claim, N items waiting

local now = now_ms(ARGV[1])
local out = {}
for i = 2, #ARGV, 7 do
  local id, lease_end = ARGV[i], tonumber(ARGV[i + 1])
  if owns(KEYS[2], KEYS[3], id, lease_end, ARGV[i + 2]) then
    -- Not before it was due either: the clock may have stepped back.
    local at = math.max(now + tonumber(ARGV[i + 4]), tonumber(ARGV[i + 3]))
    if ARGV[i + 5] == '1' then at = math.max(at, lease_end + 1) end
    local failed, lost = read_tries(call('HGET', KEYS[4], id))
    call('ZREM', KEYS[2], id)
    call('ZADD', KEYS[1], at, id)
    local why = ARGV[i + 6]
    if why ~= '' then why = ' ' .. why end
    call('HSET', KEYS[4], id, (failed + 1) .. ' ' .. lost .. why)
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
