-- ack.lua: inflight -> done (delivered)
--
-- KEYS[1]     inflight  zset, id -> lease end in ms
-- KEYS[2]     msg       hash, id -> record
-- KEYS[3]     tries     hash, id -> tries
-- KEYS[4]     done:a    hash, id -> tombstone
-- KEYS[5]     done:b    hash, id -> tombstone
-- ARGV[1]     now       ms, '' for Redis's own clock
-- ARGV[2]     ceiling   ms, the latest time that the host's clock allows
-- ARGV[3]     window    ms, how long a tombstone lives at least
-- ARGV[4...]  id, "<lease end in ms> <marks>": two for each claim
--
-- Returns  one for each claim: 1 settled, 0 lease lost (nothing changed)
-- Cost     O(log M) a claim, M items in flight

local ids, ends, marks = {}, {}, {}
local lease, lease_end, lease_marks
for i = 4, #ARGV, 2 do
  local n = #ids + 1
  if ARGV[i + 1] ~= lease then
    lease = ARGV[i + 1]
    lease_end, lease_marks = string.match(lease, '^(%d+) (.*)$')
  end
  ids[n], ends[n], marks[n] = ARGV[i], lease_end, lease_marks
end
local held = owned(KEYS[1], KEYS[2], ids, ends, marks)

local out, settled, tombs = {}, {}, {}
for n, id in ipairs(ids) do
  out[n] = held[n] and 1 or 0
  if held[n] then
    settled[#settled + 1] = id
    tombs[#tombs + 1] = id
    tombs[#tombs + 1] = 'd ' .. marks[n]
  end
end
if #settled > 0 then
  call('ZREM', KEYS[1], unpack(settled))
  call('HDEL', KEYS[2], unpack(settled))
  if call('HLEN', KEYS[3]) > 0 then call('HDEL', KEYS[3], unpack(settled)) end
  tombstones(KEYS[4], KEYS[5]).put(allowed_ms(ARGV[1], ARGV[2]), tonumber(ARGV[3]), unpack(tombs))
end
return out
