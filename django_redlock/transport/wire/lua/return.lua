-- KEYS lock × n                   ARGV nonce, old
-- Gives each key that carries this nonce back to ``old``, whose handle was not adopted after all. It
-- keeps its expiry and this grant's number, which no answer to ``old`` has ever told.
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
