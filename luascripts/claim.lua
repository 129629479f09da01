-- claim.lua: due -> inflight, inflight -> inflight where a lease has run out, either -> dead
--
-- KEYS[1]  due        zset, id -> due time in ms
-- KEYS[2]  inflight   zset, id -> lease end in ms
-- KEYS[3]  msg        hash, id -> record
-- KEYS[4]  tries      hash, id -> tries
-- KEYS[5]  dead       zset, id -> time of death in ms
-- KEYS[6]  deadmsg    hash, id -> letter
-- KEYS[7]  deadcount  hash, reason -> letters
-- KEYS[8]  done:a     hash, id -> tombstone
-- KEYS[9]  done:b     hash, id -> tombstone
-- ARGV[1]  now        ms, '' for Redis's own clock
-- ARGV[2]  ceiling    ms, the latest due time that the host's clock allows
-- ARGV[3]  limit      items at the most, 0..1000
-- ARGV[4]  lease      ms
-- ARGV[5]  max_lost   lost leases after which an item is abandoned
-- ARGV[6]  max_bytes  of records in one reply, passed by at most one record
-- ARGV[7]  window     ms, how long a tombstone lives at least
--
-- Returns  now in ms, wait in us until the next may be claimed (0 now, -1 there is none),
--          lease end in ms (see prelude.lua), leases found run out, items buried, items that
--          follow, then id, record: two for each item, oldest lease first, then oldest due
--          first, then place from 1, failed, lost: three for each item that has tries; lost is
--          negative for what was abandoned just now and is no claim
-- Cost     O(limit * log N), N items waiting

local now, past_ms = now_ms(ARGV[1])
local clock = math.min(now, tonumber(ARGV[2]))
local limit, max_lost, max_bytes = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lease_end = now + tonumber(ARGV[4])
lease_end = lease_end + lease_end % 2
-- As texts: to write a number once is faster than once for each item.
local even, odd = string.format('%d', lease_end), string.format('%d', lease_end + 1)

local expired = call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit)
local due = {}
if #expired < limit then
  due = call('ZRANGEBYSCORE', KEYS[1], '-inf', clock, 'LIMIT', 0, limit - #expired)
end

local records, bytes = {}, 0
local function read(ids)
  local taken = 0
  if bytes <= max_bytes then
    each_value(KEYS[3], ids, function(n, record)
      taken = n
      records[#records + 1] = record
      bytes = bytes + #(record or '')
      return bytes > max_bytes
    end)
  end
  for n = #ids, taken + 1, -1 do ids[n] = nil end
end
read(expired)
read(due)

-- ZREM comes first: from here on the script runs even where Redis is full.
if #expired > 0 then call('ZREM', KEYS[2], unpack(expired)) end
if #due > 0 then call('ZREM', KEYS[1], unpack(due)) end

local out, leases, tried = {now, -1, even, #expired, 0, 0}, {}, {}
local function add(id, record, failed, lost)
  local o = #out
  out[6], out[o + 1], out[o + 2] = out[6] + 1, id, record
  if failed > 0 or lost ~= 0 then
    local t = #tried
    tried[t + 1], tried[t + 2], tried[t + 3] = out[6], failed, lost
  end
end
local function bury(id, record, marks, failed, lost)
  local reason, text = 'abandoned', 'its lease ran out ' .. lost .. ' times'
  if not record then
    reason, text = 'corrupt', 'the message has no record'
  elseif not marks then
    reason, text = 'corrupt', 'the record is of no known format'
  end
  call('HDEL', KEYS[3], id)
  call('HDEL', KEYS[4], id)
  put_letter(KEYS[5], KEYS[6], KEYS[7], id, now, reason, failed, lost, text, record or '')
  if marks then tombstones(KEYS[8], KEYS[9]).put(clock, tonumber(ARGV[7]), id, 'x ' .. marks) end
  out[5] = out[5] + 1
  if marks then add(id, record, failed, -lost) end
end
local function take(ids, first, ran_out)
  if #ids == 0 then return end
  local tries = call('HLEN', KEYS[4]) > 0 and call('HMGET', KEYS[4], unpack(ids)) or {}
  for i, id in ipairs(ids) do
    local record = records[first + i]
    local marks = record and marks_of(record)
    local failed, lost, why = read_tries(tries[i])
    if ran_out then lost = lost + 1 end
    if not marks or lost >= max_lost then
      bury(id, record, marks, failed, lost)
    else
      if ran_out then call('HSET', KEYS[4], id, failed .. ' ' .. lost .. why) end
      leases[#leases + 1] = marks == '=' and odd or even
      leases[#leases + 1] = id
      add(id, record, failed, lost)
    end
  end
end
take(expired, 0, true)
take(due, #expired, false)
if #leases > 0 then call('ZADD', KEYS[2], unpack(leases)) end
for _, n in ipairs(tried) do out[#out + 1] = n end

local next_due = tonumber(call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or math.huge)
local next_end = tonumber(call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or math.huge)
local wait = math.min(next_due - clock, next_end - now)
if wait < math.huge then out[2] = math.max(0, wait * 1000 - past_ms) end
return out
