-- stray.lua: lost -> lost (it only reads)
--
-- KEYS[1..3]  due       zset, id -> due time in ms, one a lane
-- KEYS[4..6]  inflight  zset, id -> lease end in ms, one a lane
-- KEYS[7]     msg       hash, id -> record
-- ARGV[1]     cursor    of HSCAN, 0 to begin
-- ARGV[2]     count     records to look at, about
--
-- Returns  the cursor to go on with, 0 at the end, then id, record: two for each record that
--          stands in no set, so that nothing would ever deliver it
-- Cost     O(count * log N), N items waiting

local sets = {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]}
local cursor, most = ARGV[1], tonumber(ARGV[2])
local strays = {}

-- Adds those of a scan that stand in no set. A small hash is scanned in one go, whatever the
-- count.
local function sift(found)
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  for first = 1, #ids, 500 do
    local last = math.min(first + 499, #ids)
    local stands = {}
    for _, set in ipairs(sets) do
      local scores = call('ZMSCORE', set, unpack(ids, first, last))
      for i = first, last do stands[i] = stands[i] or scores[i - first + 1] end
    end
    for i = first, last do
      if not stands[i] then
        strays[#strays + 1] = ids[i]
        strays[#strays + 1] = found[2 * i]
      end
    end
  end
end

-- A scan brings the records too, and there is no asking for less: a few first, and many only
-- where those were small, since all of them are in memory.
local count, looked, bytes = 4, 0, 0
repeat
  local scan = call('HSCAN', KEYS[7], cursor, 'COUNT', count)
  local before = bytes
  for i = 2, #scan[2], 2 do bytes = bytes + #scan[2][i] end
  sift(scan[2])
  cursor, looked = scan[1], looked + #scan[2] / 2
  count = bytes - before > 65536 and 4 or most
until cursor == '0' or looked >= most or bytes > 1048576
table.insert(strays, 1, cursor)
return strays
