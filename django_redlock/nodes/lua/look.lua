-- Tell how long the name is still taken, and note that it has a waiter.
-- KEYS waits, lock                ARGV nonce, waits, name, [slots]
-- The note holds for ``waits`` milliseconds. With ``slots`` the name is a slot of a limited lock, and
-- this is about each of them, whose names differ behind the last \31. A name whose work was done once
-- is told as gone: its waiters have nothing to wait for.
-- Returns nonce, LOOKED, pttl (-1: no expiry, -2: no key); with ``slots`` a list of them
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local until_, lefts = string.format('%.0f', now + ARGV[2]), ARGV[4] and {}
local lock, name = KEYS[2], ARGV[3]
if lefts then -- '%d+$' alone would try each digit of a name that a visitor may have chosen
  lock, name = string.match(lock, '^.*\31'), string.match(name, '^.*\31')
end
for j = 0, (ARGV[4] or 1) - 1 do
  redis.pcall('ZADD', KEYS[1], until_, lefts and name .. j or name)
  if lefts then lefts[j + 1] = redis.call('PTTL', lock .. j) end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if lefts then return {ARGV[1], 'LOOKED', lefts} end
local value = redis.pcall('GET', KEYS[2])
local done = type(value) == 'string' and string.find(value, '^once::%d+:')
return {ARGV[1], 'LOOKED', done and -2 or redis.call('PTTL', KEYS[2])}
