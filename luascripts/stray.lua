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
local scan = call('HSCAN', KEYS[7], ARGV[1], 'COUNT', ARGV[2])
local out, ids = {scan[1]}, {}
for i = 1, #scan[2], 2 do ids[#ids + 1] = scan[2][i] end
-- A small hash is scanned in one go, whatever the count.
for first = 1, #ids, 500 do
  local last = math.min(first + 499, #ids)
  local stands = {}
  for _, set in ipairs(sets) do
    local scores = call('ZMSCORE', set, unpack(ids, first, last))
    for i = first, last do stands[i] = stands[i] or scores[i - first + 1] end
  end
  for i = first, last do
    if not stands[i] then
      out[#out + 1] = ids[i]
      out[#out + 1] = scan[2][2 * i]
    end
  end
end
return out
