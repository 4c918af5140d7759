-- KEYS held, waits, lock × n, queue × n
-- ARGV nonce, reserve, wake, name × n
-- Frees each key that carries this nonce. If somebody waits for the name and ``reserve`` is not
-- 0, it is kept for whoever is woken next, for so many milliseconds. For the names with a "1"
-- in ``wake``, a digit for each, if somebody waits, the nonce becomes the queue's only word,
-- whether the key carried it or not.
-- Needs no write that a node which is out of memory refuses, and no ``waits`` that can be read.
-- Returns nonce, FREED, number of names for which somebody waits | nonce, GONE, the same
local nonce, reserve, n = ARGV[1], tonumber(ARGV[2]), (#KEYS - 2) / 2
local word, woken = 'GONE', 0
for i = 1, n do
  local lock, queue, name = KEYS[2 + i], KEYS[2 + n + i], ARGV[3 + i]
  local waited = redis.pcall('ZSCORE', KEYS[2], name)
  if type(waited) == 'string' then
    local t = redis.call('TIME')
    waited = tonumber(waited) > t[1] * 1000 + math.floor(t[2] / 1000)
    if not waited then redis.call('ZREM', KEYS[2], name) end
  else
    waited = false
  end
  local value = redis.call('GET', lock)
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    local kept = waited and reserve > 0 and redis.pcall('SET', lock, 'next::', 'PX', reserve)
    if not kept or kept.err then redis.call('DEL', lock) end
    redis.call('ZREM', KEYS[1], name)
    word = 'FREED'
  end
  if waited and string.sub(ARGV[3], i, i) == '1' then
    woken = woken + 1
    redis.call('DEL', queue)
    redis.pcall('RPUSH', queue, nonce)
    redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', lock), 1000))
  end
end
return {nonce, word, woken}
