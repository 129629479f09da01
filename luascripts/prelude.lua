-- prelude.lua: what the scripts share; Go puts it before each of them.
--
-- record     "1 <marks>\n<message>": format, marks; the message is not for Lua
-- marks      "<source> <offset>" pairs, newest first: the positions that an id is known to
--            have been asked for at
-- tombstone  "<d|c|x> <marks>": delivered, cancelled or dead
-- tries      "<failed> <lost> <lease end>": failed attempts, lost leases, and the end that
--            the next lease must pass, in ms
-- letter     "1 <reason> <failed> <lost> <error bytes>\n<error><record>"

local call = redis.call

-- Unix ms, and the microseconds past them; the override is for tests, else Redis decides.
local function now_ms(override)
  if override ~= '' then return tonumber(override), 0 end
  local t = call('TIME')
  local us = tonumber(t[2])
  return tonumber(t[1]) * 1000 + math.floor(us / 1000), us % 1000
end

-- The marks of a record, nil if it is none that this version can read.
local function marks_of(record)
  return string.match(record, '^1 (%S+ %d+[^\n]*)\n')
end

-- Whether the source was at this offset, or past it. Offsets have no leading zeros, so that
-- they compare exactly as text where a Lua number would round.
local function seen(marks, source, offset)
  for s, o in string.gmatch(marks, '(%S+) (%d+)') do
    if s == source and (#o > #offset or (#o == #offset and o >= offset)) then return true end
  end
  return false
end

-- Marks with one more position in front. Four sources are kept; those of single requests by
-- API cannot be repeated later and make room first.
local function add_mark(marks, source, offset)
  local out, n = source .. ' ' .. offset, 1
  for s, o in string.gmatch(marks, '(%S+) (%d+)') do
    if n < 4 and s ~= source and string.sub(s, 1, 4) ~= 'api:' then
      out, n = out .. ' ' .. s .. ' ' .. o, n + 1
    end
  end
  return out
end

-- The two tombstone hashes, the one in use first. The field '' of each, which is no id, says
-- when it was taken into use.
local function done_order(a, b)
  local at, bt = tonumber(call('HGET', a, '') or 0), tonumber(call('HGET', b, '') or 0)
  if bt > at then return b, a, bt end
  return a, b, at
end

-- The tombstone hash to write to. After a window the other takes over, emptied first: so a
-- tombstone lives for one to two windows. To be called after the script's first write only.
local function done_now(a, b, now, window)
  local current, other, since = done_order(a, b)
  if since + window > now then return current end
  call('UNLINK', other)
  call('HSET', other, '', now)
  return other
end

-- The tombstone of an id, or false.
local function tombstone(current, other, id)
  return call('HGET', current, id) or call('HGET', other, id)
end

-- What a field of tries says, or false of an id that has none: failed, lost, lease end.
local function read_tries(text)
  local failed, lost, past = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(failed or 0), tonumber(lost or 0), tonumber(past or 0)
end

-- Takes an id out of every lane, for a new message in its place. Who holds a lease of the old
-- one must never settle the new one: the end of its next lease has to pass all ends so far.
local function displace(due, inflight, tries, id)
  local _, _, past = read_tries(call('HGET', tries, id))
  for lane = 1, 3 do
    call('ZREM', due[lane], id)
    past = math.max(past, tonumber(call('ZSCORE', inflight[lane], id) or 0))
    call('ZREM', inflight[lane], id)
  end
  if past > 0 then
    call('HSET', tries, id, string.format('0 0 %d', past))
  else
    call('HDEL', tries, id)
  end
end

-- Takes a letter out, if there is one of this id, and counts it out of its reason.
local function drop_letter(dead, letters, counts, id)
  local letter = call('HGET', letters, id)
  local reason = letter and string.match(letter, '^1 (%l+) ')
  call('ZREM', dead, id)
  call('HDEL', letters, id)
  if reason and call('HINCRBY', counts, reason, -1) <= 0 then call('HDEL', counts, reason) end
end

-- Files a letter in place of an older one of the same id.
local function put_letter(dead, letters, counts, id, now, reason, failed, lost, error, record)
  drop_letter(dead, letters, counts, id)
  call('ZADD', dead, now, id)
  call('HSET', letters, id,
    string.format('1 %s %d %d %d\n', reason, failed, lost, #error) .. error .. record)
  call('HINCRBY', counts, reason, 1)
end

