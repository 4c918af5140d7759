-- Describe held locks, without changing anything.
-- KEYS held, waits                ARGV nonce, lock prefix, limit, name …
-- Without names: those of the index that are due first, at most ``limit``. The nonce is the power
-- to release, so it stays here: a digest names the owner.
-- Of one that was revoked g is 0, and the label has from whom and why. The last item of a lock is 1
-- if the name has a waiter, else 0; it needs no ``waits`` that can be read.
-- Returns nonce, FOUND, [name, owner digest, pttl, g, label, waited] …, number of names looked at
local nonce, prefix, names = ARGV[1], ARGV[2], {}
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if #ARGV > 3 then
  for i = 4, #ARGV do names[#names + 1] = ARGV[i] end
else
  local due = string.format('%.0f', now)
  names = redis.call('ZRANGEBYSCORE', KEYS[1], due, '+inf', 'LIMIT', 0, ARGV[3])
end
local found = {}
for _, name in ipairs(names) do
  local value = redis.pcall('GET', prefix .. name)
  if type(value) == 'table' then value = '' end
  if value and value ~= 'next::' and string.sub(value, 1, 6) ~= 'done::' then
    local owner, g, label = string.match(value, '^(%x+):(%d+):(.*)$')
    local revoked, text = string.match(value, '^revoked:([0-9a-f]+):(.*)$')
    if revoked and #revoked == 16 then -- else another client wrote it: no digest is told
      owner, g, label = revoked, '0', text
    elseif owner then
      owner = string.sub(redis.sha1hex(owner), 1, 16)
    else
      owner, g = string.sub(redis.sha1hex(value), 1, 16), ''
      label = string.match(value, '^rest::(.*)$') or ''
    end
    local until_when = redis.pcall('ZSCORE', KEYS[2], name)
    local waited = type(until_when) == 'string' and tonumber(until_when) > now and 1 or 0
    found[#found + 1] = {name, owner, redis.call('PTTL', prefix .. name), g, label, waited}
  end
end
return {nonce, 'FOUND', found, #names}
