-- claim.lua: due -> inflight, and inflight -> inflight where a lease has run out
--
-- KEYS[1]  due        zset, id -> due time in ms
-- KEYS[2]  inflight   zset, id -> lease end in ms
-- KEYS[3]  msg        hash, id -> record
-- KEYS[4]  tries      hash, id -> "<failed> <lost>"
-- KEYS[5]  dead       zset, id -> time of death in ms
-- KEYS[6]  deadmsg    hash, id -> letter
-- KEYS[7]  deadcount  hash, reason -> letters
-- KEYS[8]  done:a     hash, id -> tombstone
-- KEYS[9]  done:b     hash, id -> tombstone
-- ARGV[1]  now        ms, '' for Redis's own clock
-- ARGV[2]  ceiling    ms, the latest due time that the host's clock allows
-- ARGV[3]  limit      items at the most, 1..1000
-- ARGV[4]  lease      ms
-- ARGV[5]  max_lost   lost leases after which an item is abandoned
-- ARGV[6]  max_bytes  of records in one reply, passed by at most one record
-- ARGV[7]  window     ms, how long a tombstone lives at least
--
-- Returns  now in ms, wait in us until the next may be claimed (0 now, -1 there is none),
--          lease end in ms, leases found run out, items buried, then id, record, failed,
--          lost: four for each claim, oldest lease first, then oldest due first
-- Cost     O(limit * log N), N items waiting

local now, past = now_ms(ARGV[1])
local clock = math.min(now, tonumber(ARGV[2]))
local limit, max_lost, max_bytes = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lease_end = now + tonumber(ARGV[4])
local window = tonumber(ARGV[7])

local expired = call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit)
local due = {}
if #expired < limit then
  due = call('ZRANGEBYSCORE', KEYS[1], '-inf', clock, 'LIMIT', 0, limit - #expired)
end

local records, bytes, n = {}, 0, 0
local function read(ids)
  for i, id in ipairs(ids) do
    if bytes > max_bytes then
      for j = i, #ids do ids[j] = nil end
      return
    end
    n = n + 1
    records[n] = call('HGET', KEYS[3], id)
    bytes = bytes + #(records[n] or '')
  end
end
read(expired)
read(due)

-- ZREM comes first: from here on the script runs even where Redis is full.
if #expired > 0 then call('ZREM', KEYS[2], unpack(expired)) end
if #due > 0 then call('ZREM', KEYS[1], unpack(due)) end

local out = {now, -1, lease_end, #expired, 0}
local leases = {}
local function take(id, record, ran_out)
  local failed, lost = 0, 0
  failed, lost = tries_of(KEYS[4], id)
  if ran_out then lost = lost + 1 end
  local marks = record and marks_of(record)
  if not marks or lost >= max_lost then
    local reason, text = 'abandoned', 'its lease ran out ' .. lost .. ' times'
    if not record then
      reason, text = 'corrupt', 'the message has no record'
    elseif not marks then
      reason, text = 'corrupt', 'the record is of no known format'
    end
    call('HDEL', KEYS[3], id)
    call('HDEL', KEYS[4], id)
    put_letter(KEYS[5], KEYS[6], KEYS[7], id, now, reason, failed, lost, text, record or '')
    if marks then call('HSET', done_now(KEYS[8], KEYS[9], now, window), id, 'x ' .. marks) end
    out[5] = out[5] + 1
    return
  end
  if ran_out then call('HSET', KEYS[4], id, failed .. ' ' .. lost) end
  leases[#leases + 1] = lease_end
  leases[#leases + 1] = id
  local o = #out
  out[o + 1], out[o + 2], out[o + 3], out[o + 4] = id, record, failed, lost
end
for i, id in ipairs(expired) do take(id, records[i], true) end
for i, id in ipairs(due) do take(id, records[#expired + i], false) end
if #leases > 0 then call('ZADD', KEYS[2], unpack(leases)) end

local next_due = tonumber(call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
local next_end = tonumber(call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])
local wait = math.huge
if next_due then wait = next_due - clock end
if next_end then wait = math.min(wait, next_end - now) end
if wait < math.huge then out[2] = math.max(0, wait * 1000 - past) end
return out
