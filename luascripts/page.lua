-- page.lua: due -> due, dead -> dead (it only reads)
--
-- KEYS[1]  set    zset, id -> ms, of any kind
-- ARGV[1]  score  ms, and
-- ARGV[2]  id     to begin behind; '' begins at the score
-- ARGV[3]  limit  items at the most
--
-- Returns  id, score: two for each item, by score and then by id
-- Cost     O(log^2 N + limit), however many items share one score

-- Whether b comes after a, byte by byte as in the set; Lua's own < goes by the locale.
local function after(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return y > x end
  end
  return #b > #a
end

local low = call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
local high = low + call('ZCOUNT', KEYS[1], ARGV[1], ARGV[1])
while low < high do
  local middle = math.floor((low + high) / 2)
  if after(ARGV[2], call('ZRANGE', KEYS[1], middle, middle)[1]) then
    high = middle
  else
    low = middle + 1
  end
end
return call('ZRANGE', KEYS[1], low, low + tonumber(ARGV[3]) - 1, 'WITHSCORES')
