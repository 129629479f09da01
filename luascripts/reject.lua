-- reject.lua: (none) -> dead, in place of another letter of the same id
--
-- KEYS[1]     dead       zset, id -> time of death in ms
-- KEYS[2]     deadmsg    hash, id -> letter
-- KEYS[3]     deadcount  hash, reason -> letters
-- KEYS[4]     done:a     hash, id -> tombstone
-- KEYS[5]     done:b     hash, id -> tombstone
-- ARGV[1]     now        ms, '' for Redis's own clock
-- ARGV[2]     ceiling    ms, the latest time that the host's clock allows
-- ARGV[3]     window     ms, how long a tombstone lives at least
-- ARGV[4...]  id, source, offset, error, message: five for each item
--
-- Returns  one for each item: 0 rejected, 1 duplicate (nothing changed, but that the
--          tombstone by which it was known lives on)
-- Cost     O(log D) an item, D dead letters

local now = now_ms(ARGV[1])
local allowed, window = allowed_ms(ARGV[1], ARGV[2]), tonumber(ARGV[3])
local done = tombstones(KEYS[4], KEYS[5])
local ids, known, out = {}, {}, {}
for i = 4, #ARGV, 5 do ids[#ids + 1] = ARGV[i] end
local tombs = done.get_all(ids)
for i = 4, #ARGV, 5 do
  local id, source, offset = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local marks = string.sub(tombs[id] or '', 3)
  -- A letter tells a redelivery when the tombstone is gone. But it may be of a message that
  -- was given this id by its producer: that must not keep this one out.
  local letter = call('HGET', KEYS[2], id)
  if seen(id, marks, source, offset) then
    known[#known + 1] = id
    out[#out + 1] = 1
  elseif letter and seen(id, letter_marks(letter), source, offset) then
    out[#out + 1] = 1
  else
    marks = add_mark(id, marks, source, offset)
    -- The letter is the first thing written, so that a full Redis refuses it as a whole.
    call('HSET', KEYS[2], id,
      string.format('1 rejected 0 0 %d\n', #ARGV[i + 3]) .. ARGV[i + 3] .. '1 ' .. marks .. '\n' .. ARGV[i + 4])
    count_out(KEYS[3], letter)
    call('ZADD', KEYS[1], now, id)
    call('HINCRBY', KEYS[3], 'rejected', 1)
    tombs[id] = 'x ' .. marks
    done.put(allowed, window, id, tombs[id])
    out[#out + 1] = 0
  end
end
done.renew(allowed, window, known, tombs)
return out
