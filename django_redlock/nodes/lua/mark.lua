-- Mark a queued task, unless another message of the same task waits, or one runs.
-- KEYS marks, mark, lock × n      ARGV nonce, ttl, task, id
-- A mark is ``nonce:ttl:id``, for ``ttl`` milliseconds; one of the same id, or whatever is no mark,
-- is replaced. A lock counts if its label ends in ``(task):`` and another id: other tasks, and what
-- is no task, may hold the same name. The record of work that was done once is no run.
-- The index has what follows ``mark:`` in the key. Its writes may fail: a mark is worth more. Now and
-- then expired names are removed from it.
-- Returns nonce, MARKED, 1 | nonce, TAKEN, the other id, a digest of its mark's nonce, for how many
-- milliseconds the mark has been there (a run: "", 0)
local nonce, id = ARGV[1], ARGV[4]
local value = redis.call('GET', KEYS[2])
local owner, life, other
if value then owner, life, other = string.match(value, '^(%x+):(%d+):([%w_.-]+)$') end
for i = 3, #KEYS do
  local lock, task, running = redis.call('GET', KEYS[i])
  if lock and string.sub(lock, 1, 6) ~= 'once::' then
    task, running = string.match(lock, '%(([^():]+)%):([%w_.-]+)$') end
  if task and task == ARGV[3] and running ~= id and (not other or other == id) then
    owner, other = nil, running
  end
end
if other and other ~= id then
  if not owner then return {nonce, 'TAKEN', other, '', 0} end
  local age = math.max(0, math.min(tonumber(life) - redis.call('PTTL', KEYS[2]), 2^53))
  return {nonce, 'TAKEN', other, string.sub(redis.sha1hex(owner), 1, 16), age}
end
redis.call('SET', KEYS[2], nonce .. ':' .. ARGV[2] .. ':' .. id, 'PX', ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local name = string.sub(KEYS[2], #KEYS[1] + 1) -- the keys of index and mark begin alike
redis.pcall('ZADD', KEYS[1], now + ARGV[2], name)
if t[2] % 64 == 0 then redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) end
return {nonce, 'MARKED', 1}
