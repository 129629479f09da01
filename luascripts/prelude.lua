-- prelude.lua: what the scripts share; it is put before each of them.
--
-- A record is "1 <marks>\n<message in msgpack>": format, marks, the rest is not for Lua.
-- Marks are "<source> <offset>" pairs, newest first: every position that this id is known
-- to have been asked for at. A tombstone is "<d|c|x> <marks>": delivered, cancelled, dead.
-- A letter is "1 <reason> <failed> <lost> <error bytes>\n<error><record>".

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

-- Failed attempts and lost leases of an id.
local function tries_of(tries, id)
  local failed, lost = string.match(call('HGET', tries, id) or '', '^(%d+) (%d+)$')
  return tonumber(failed or 0), tonumber(lost or 0)
end

-- Takes a letter out, if there is one of this id, and counts it out of its reason.
local function drop_letter(dead, letters, counts, id)
  local letter = call('HGET', letters, id)
  local reason = letter and string.match(letter, '^1 (%l+) ')
  local removed = call('ZREM', dead, id)
  call('HDEL', letters, id)
  if reason and call('HINCRBY', counts, reason, -1) <= 0 then call('HDEL', counts, reason) end
  return removed
end

-- Files a letter in place of an older one of the same id.
local function put_letter(dead, letters, counts, id, now, reason, failed, lost, error, record)
  drop_letter(dead, letters, counts, id)
  call('ZADD', dead, now, id)
  call('HSET', letters, id,
    string.format('1 %s %d %d %d\n', reason, failed, lost, #error) .. error .. record)
  call('HINCRBY', counts, reason, 1)
end

