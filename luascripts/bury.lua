-- bury.lua: inflight -> dead
--
-- KEYS[1]     inflight   zset, id -> lease end in ms
-- KEYS[2]     msg        hash, id -> record
-- KEYS[3]     tries      hash, id -> tries
-- KEYS[4]     dead       zset, id -> time of death in ms
-- KEYS[5]     deadmsg    hash, id -> letter
-- KEYS[6]     deadcount  hash, reason -> letters
-- KEYS[7]     done:a     hash, id -> tombstone
-- KEYS[8]     done:b     hash, id -> tombstone
-- ARGV[1]     now        ms, '' for Redis's own clock
-- ARGV[2]     ceiling    ms, the latest time that the host's clock allows
-- ARGV[3]     window     ms, how long a tombstone lives at least
-- ARGV[4...]  id, lease end in ms, marks, reason, error, failed, lost: seven for each claim
--
-- Returns  one for each claim: 1 settled, 0 lease lost (nothing changed)
-- Cost     O(log D) a claim, D dead letters

local now = now_ms(ARGV[1])
local allowed, window = allowed_ms(ARGV[1], ARGV[2]), tonumber(ARGV[3])
local done = tombstones(KEYS[7], KEYS[8])
local out = {}
for i = 4, #ARGV, 7 do
  local id, marks = ARGV[i], ARGV[i + 2]
  if owns(KEYS[1], KEYS[2], id, ARGV[i + 1], marks) then
    local record = call('HGET', KEYS[2], id) or ''
    call('ZREM', KEYS[1], id)
    call('HDEL', KEYS[2], id)
    call('HDEL', KEYS[3], id)
    put_letter(KEYS[4], KEYS[5], KEYS[6], id, now, ARGV[i + 3],
      tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6]), ARGV[i + 4], record)
    done.put(allowed, window, id, 'x ' .. marks)
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
