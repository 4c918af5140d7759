-- Free each key that has this nonce, and wake the first waiter.
-- KEYS held, waits, lock × n, queue × n
-- ARGV nonce, reserve, wake, name × n
-- If the name has a waiter and ``reserve`` is not 0, it is reserved for the waiter that is woken,
-- for so many milliseconds. ``wake`` has a digit for each name: if it has a waiter and a "1", the
-- nonce becomes the queue's only wake-up, whether the key had it or not.
-- Needs no write that a node which is out of memory refuses, and no ``waits`` that can be read.
-- A key that was revoked from this nonce is freed as well: its holder is the one that lets go.
-- Returns nonce, FREED, number of names that have a waiter and were woken | nonce, GONE, the same;
-- and where a lease was revoked, from whom and why
local nonce, n, outcome, woken, revoked = ARGV[1], (#KEYS - 2) / 2, 'GONE', 0, nil
local mine = nonce .. ':'
for i = 1, n do
  local lock, name, wake = KEYS[2 + i], ARGV[3 + i], string.sub(ARGV[3], i, i)
  local waited = redis.pcall('ZSCORE', KEYS[2], name)
  if type(waited) == 'string' then
    local t = redis.call('TIME')
    waited = tonumber(waited) > t[1] * 1000 + math.floor(t[2] / 1000)
    if not waited then redis.call('ZREM', KEYS[2], name) end
  else
    waited = false
  end
  local value = redis.call('GET', lock)
  local ours = value and string.sub(value, 1, #mine) == mine
  if value and not ours then
    local owner, text = string.match(value, '^revoked:([0-9a-f]+):(.*)$')
    if owner and owner == string.sub(redis.sha1hex(nonce), 1, 16) then ours, revoked = true, text end
  end
  if ours then
    local kept = waited and ARGV[2] ~= '0'
      and redis.pcall('SET', lock, 'next::', 'PX', ARGV[2])
    if not kept or kept.err then redis.call('DEL', lock) end
    redis.call('ZREM', KEYS[1], name)
    outcome = 'FREED'
  end
  if waited and wake ~= '0' then
    local queue = KEYS[2 + n + i]
    woken = woken + 1
    redis.call('DEL', queue)
    redis.pcall('RPUSH', queue, nonce)
    redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', lock), 1000))
  end
end
if revoked then return {nonce, outcome, woken, revoked} end
return {nonce, outcome, woken}
