-- prelude.lua: what the scripts share; Go puts it before each of them.
--
-- record     "1 <marks>\n<message>": format, marks; the message is not for Lua
-- marks      "<source> <offset>" pairs, newest first: the positions that an id is known to
--            have been asked for at; or "=" for the one that the id itself names, as
--            default ids do: "<source>:<offset>"
-- lease end  Unix ms; odd for a record whose marks are "=", even for all others
-- tombstone  "<d|c|x> <marks>": delivered, cancelled or dead
-- tries      "<failed> <lost>" or "<failed> <lost> <error>": failed attempts, lost leases, and
--            why the last attempt failed
-- letter     "1 <reason> <failed> <lost> <error bytes>\n<error><record>"

local call = redis.call

-- Unix ms, and the microseconds past them; the override is for tests, else Redis decides.
local function now_ms(override)
  if override ~= '' then return tonumber(override), 0 end
  local t = call('TIME')
  local us = tonumber(t[2])
  return tonumber(t[1]) * 1000 + math.floor(us / 1000), us % 1000
end

-- Unix ms by which things grow old: a clock that jumped ahead must not make all of them old.
local function allowed_ms(override, ceiling)
  return math.min(now_ms(override), tonumber(ceiling))
end

-- The marks of a record, nil if it is none that this version can read.
local function marks_of(record)
  return string.match(record, '^1 (=)\n') or string.match(record, '^1 (%S+ %d+[^\n]*)\n')
end

-- The marks of an id as pairs.
local function pairs_of(id, marks)
  if marks ~= '=' then return marks end
  return (string.gsub(id, ':(%d+)$', ' %1'))
end

-- Whether the source was at this offset, or past it. Offsets have no leading zeros, so that
-- they compare exactly as text where a Lua number would round.
local function seen(id, marks, source, offset)
  if marks == '' then return false end
  for s, o in string.gmatch(pairs_of(id, marks), '(%S+) (%d+)') do
    if s == source and (#o > #offset or (#o == #offset and o >= offset)) then return true end
  end
  return false
end

-- Marks with one more position in front. Four sources are kept; those of single requests by
-- API cannot be repeated later and make room first.
local function add_mark(id, marks, source, offset)
  if marks == '' and id == source .. ':' .. offset then return '=' end
  local out, n = source .. ' ' .. offset, 1
  for s, o in string.gmatch(pairs_of(id, marks), '(%S+) (%d+)') do
    if n < 4 and s ~= source and string.sub(s, 1, 4) ~= 'api:' then
      out, n = out .. ' ' .. s .. ' ' .. o, n + 1
    end
  end
  if n == 1 and id == source .. ':' .. offset then return '=' end
  return out
end

-- Calls each for the fields from the first to the last of a list of ids, with the id's place
-- and its value or false, until it answers true. To ask for many at a time costs far less than
-- one by one; how many goes by the bytes of the last ones, since all of them are in memory.
local function each_value(hash, ids, each)
  local i, n = 1, 1
  while i <= #ids do
    local last, bytes = math.min(i + n - 1, #ids), 0
    for j, value in ipairs(call('HMGET', hash, unpack(ids, i, last))) do
      if each(i + j - 1, value) then return end
      bytes = bytes + #(value or '')
    end
    n = math.max(1, math.min(32, math.floor(n * 65536 / (bytes + 1))))
    i = last + 1
  end
end

-- Which claims still hold their leases, by their places; lists of ids, lease ends and marks.
-- The lease end is the one that the claim was given, and the message is the one that was
-- claimed. The end alone would not do: a message that replaced this one may by chance be
-- leased until the same millisecond. It does for "=", since no other record of the id has
-- these marks, nor an odd lease end: to read each record again takes time. (Ends between
-- milliseconds would tell as well, but take more time than reading the records.)
local function owned(inflight, msg, ids, ends, marks)
  local held, among, at = {}, {}, {}
  for i, score in ipairs(call('ZMSCORE', inflight, unpack(ids))) do
    if score and (score == ends[i] or tonumber(score) == tonumber(ends[i])) then
      if marks[i] == '=' then
        held[i] = true
      else
        among[#among + 1], at[#at + 1] = ids[i], i
      end
    end
  end
  each_value(msg, among, function(n, record)
    local i = at[n]
    held[i] = not record or string.sub(record, 1, #marks[i] + 3) == '1 ' .. marks[i] .. '\n'
  end)
  return held
end

-- Whether one claim still holds its lease.
local function owns(inflight, msg, id, lease_end, marks)
  return owned(inflight, msg, {id}, {lease_end}, {marks})[1]
end

-- The tombstones of a shard. They lie in two hashes that take turns, so that each lives for
-- one to two windows. The field '' of a hash, which is no id, says when it was taken into use.
local function tombstones(a, b)
  local since, before = tonumber(call('HGET', a, '') or 0), tonumber(call('HGET', b, '') or 0)
  local current, older = a, b
  if before > since then current, older, since, before = b, a, before, since end
  local t = {current = current, older = older, since = since}

  -- The tombstone of an id, or false.
  function t.get(id)
    return t.since > 0 and (call('HGET', t.current, id) or call('HGET', t.older, id))
  end

  -- The tombstones of a batch by id, in far less time than one by one. To be called before
  -- any put, which may drop those that the batch has yet to look at.
  function t.get_all(ids)
    local all = {}
    if t.since == 0 or #ids == 0 then return all end
    local current, older = call('HMGET', t.current, unpack(ids)), call('HMGET', t.older, unpack(ids))
    for n, id in ipairs(ids) do all[id] = current[n] or older[n] end
    return all
  end

  -- Writes id, tombstone, id, tombstone ... After a window the older hash takes over, emptied
  -- first.
  function t.put(now, window, ...)
    if t.since + window <= now then
      call('UNLINK', t.older)
      call('HSET', t.older, '', now)
      t.current, t.older, t.since = t.older, t.current, now
    end
    call('HSET', t.current, ...)
  end

  -- Puts the tombstones again by which redeliveries of these ids were known, so that they live
  -- on for as long as the redeliveries come: a source whose acknowledgements are lost may go on
  -- for many windows. Those in the hash in use live long enough, and cost no write.
  function t.renew(now, window, ids, all)
    if #ids == 0 then return end
    local held = t.since + window > now and call('HMGET', t.current, unpack(ids)) or {}
    local old = {}
    for n, id in ipairs(ids) do
      if not held[n] then
        old[#old + 1] = id
        old[#old + 1] = all[id]
      end
    end
    if #old > 0 then t.put(now, window, unpack(old)) end
  end
  return t
end

-- Failed attempts and lost leases by a field of tries, false for none; then the last error,
-- with the blank before it where there is one.
local function read_tries(text)
  if not text then return 0, 0, '' end -- nearly always
  local failed, lost, why = string.match(text, '^(%d+) (%d+)(.*)$')
  return tonumber(failed or 0), tonumber(lost or 0), why or ''
end

-- The marks of a letter's record, '' where it cannot be read.
local function letter_marks(letter)
  local _, head, bytes = string.find(letter, '^1 %l+ %d+ %d+ (%d+)\n')
  return head and marks_of(string.sub(letter, head + tonumber(bytes) + 1)) or ''
end

-- Counts a letter that goes out of its reason; false is none.
local function count_out(counts, letter)
  local reason = letter and string.match(letter, '^1 (%l+) ')
  if reason and call('HINCRBY', counts, reason, -1) <= 0 then call('HDEL', counts, reason) end
end

-- Takes a letter out, if there is one of this id, and counts it out of its reason.
local function drop_letter(dead, letters, counts, id)
  local letter = call('HGET', letters, id)
  call('ZREM', dead, id)
  call('HDEL', letters, id)
  count_out(counts, letter)
end

-- Files a letter in place of an older one of the same id.
local function put_letter(dead, letters, counts, id, now, reason, failed, lost, error, record)
  drop_letter(dead, letters, counts, id)
  call('ZADD', dead, now, id)
  call('HSET', letters, id,
    string.format('1 %s %d %d %d\n', reason, failed, lost, #error) .. error .. record)
  call('HINCRBY', counts, reason, 1)
end

