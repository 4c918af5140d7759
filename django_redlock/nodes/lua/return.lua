-- Give the keys of an adopter that got no majority back to the giver.
-- KEYS lock × n                   ARGV nonce, old
-- Each key that has this nonce gets the giver's, ``old``. It keeps its expiry and this grant's
-- number, which was in no reply to ``old``.
-- Returns nonce, RETURNED, number of keys | nonce, GONE
local nonce, old, n = ARGV[1], ARGV[2], 0
for i = 1, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    redis.call('SET', KEYS[i], old .. string.sub(value, #nonce + 1), 'KEEPTTL')
    n = n + 1
  end
end
if n == 0 then return {nonce, 'GONE'} end
return {nonce, 'RETURNED', n}
