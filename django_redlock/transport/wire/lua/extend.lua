-- Prolong many leases, each with all its keys or none.
-- KEYS held, lock …               ARGV nonce, then for each lease: its nonce, ttl, n, name × n
-- Never shortens, never creates. The index is written after the expiry, and that write may fail
-- (out of memory): a lease is worth more.
-- Returns nonce, KEPT, [1 prolonged | 0 a key is missing or carries another nonce] …
local kept, key, arg = {}, 2, 2
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
while arg <= #ARGV do
  local mine, ttl, n = ARGV[arg] .. ':', tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local all = 1
  for i = key, key + n - 1 do
    local value = redis.call('GET', KEYS[i])
    if not value or string.sub(value, 1, #mine) ~= mine then
      all = 0
      break
    end
  end
  for i = 0, all * n - 1 do
    local left = redis.call('PTTL', KEYS[key + i])
    if left >= 0 and left < ttl then
      redis.call('PEXPIRE', KEYS[key + i], ttl)
      redis.pcall('ZADD', KEYS[1], now + ttl, ARGV[arg + 3 + i])
    end
  end
  kept[#kept + 1] = all
  key, arg = key + n, arg + 3 + n
end
return {ARGV[1], 'KEPT', kept}
