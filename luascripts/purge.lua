-- purge.lua: dead -> (none)
--
-- KEYS[1]     dead       zset, id -> time of death in ms
-- KEYS[2]     deadmsg    hash, id -> letter
-- KEYS[3]     deadcount  hash, reason -> letters
-- ARGV[1...]  id, time of death in ms: two for each letter
--
-- Returns  one for each letter: 1 purged, 0 gone or another by now (nothing changed)
-- Cost     O(log D) a letter, D dead letters

local out = {}
for i = 1, #ARGV, 2 do
  local died = call('ZSCORE', KEYS[1], ARGV[i])
  if died and tonumber(died) == tonumber(ARGV[i + 1]) then
    drop_letter(KEYS[1], KEYS[2], KEYS[3], ARGV[i])
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
