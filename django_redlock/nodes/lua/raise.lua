-- Raise the fence counters of the names to the token that the majority needs.
-- KEYS fences, lock × n           ARGV nonce, token, field × n, g
-- Only if every key still has this nonce *and this grant's* g.
-- Returns nonce, RAISED, token | nonce, GONE
local nonce, token, g, n = ARGV[1], tonumber(ARGV[2]), ARGV[#ARGV], #KEYS - 1
local mine = nonce .. ':' .. g .. ':'
if tonumber(g) > token then return {nonce, 'GONE'} end
for i = 2, n + 1 do
  local value = redis.call('GET', KEYS[i])
  if not value or string.sub(value, 1, #mine) ~= mine then return {nonce, 'GONE'} end
end
for i = 3, n + 2 do
  if tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') < token then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[2])
  end
end
return {nonce, 'RAISED', ARGV[2]}
