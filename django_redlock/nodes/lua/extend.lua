-- Prolong many leases, each with all its keys or none.
-- KEYS held, lock …               ARGV nonce, then for each lease: its nonce, ttl, n, name × n
-- Never shortens, never creates. The index is written after the expiry, and that write may fail
-- (out of memory): a lease is worth more.
-- A lease that is not prolonged is *free* if no key has another value: its names are free here, and
-- the renewal may put it back by ``heal``. A SET in this script would be wrong: a release travels
-- on another connection, and an extension that it overtakes would take the name again.
-- Returns nonce, KEPT, [1 prolonged | 0 a key is missing or carries another nonce] …, [index of a
-- lease that is free, from 0] …; and where leases were revoked [index, from whom and why] …
local kept, free, revoked, key, arg = {}, {}, {}, 2, 2
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
while arg <= #ARGV do
  local mine, ttl, n = ARGV[arg] .. ':', tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local all, others = 1, false
  for i = key, key + n - 1 do
    local value = redis.call('GET', KEYS[i])
    if not value then
      all = 0
    elseif string.sub(value, 1, #mine) ~= mine then
      all, others = 0, true
      local owner, text = string.match(value, '^revoked:([0-9a-f]+):(.*)$')
      if owner and owner == string.sub(redis.sha1hex(ARGV[arg]), 1, 16) then
        revoked[#revoked + 1], revoked[#revoked + 2] = #kept, text
      end
      break
    end
  end
  if all == 0 and not others then free[#free + 1] = #kept end
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
if #revoked > 0 then return {ARGV[1], 'KEPT', kept, free, revoked} end
return {ARGV[1], 'KEPT', kept, free}
