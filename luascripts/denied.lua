-- denied.lua: (it changes nothing)
--
-- KEYS     none, or any key of the shard, which says to a cluster where this runs
-- ARGV     for each command: its number of words, and its words
--
-- Returns  the places, from 1, of the commands that the user may not run
-- Cost     O(commands)

-- Servers that only imitate Redis do not know it.
if not redis.acl_check_cmd then
  return redis.error_reply('NOACL this server does not tell what its user may do')
end

local denied, place, i = {}, 0, 1
while i <= #ARGV do
  local n = tonumber(ARGV[i])
  local words = {}
  for w = 1, n do
    words[w] = ARGV[i + w]
  end
  place = place + 1
  -- A server that does not know a command lets nobody run it.
  local ok, may = pcall(redis.acl_check_cmd, unpack(words))
  if not ok or not may then
    denied[#denied + 1] = place
  end
  i = i + n + 1
end
return denied
