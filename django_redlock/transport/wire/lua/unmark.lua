-- Remove the mark of a queued task.
-- KEYS marks, mark                ARGV nonce, whose
-- Only the mark of this nonce; any mark if ``whose`` is not "".
-- Returns nonce, UNMARKED, 1 | nonce, GONE
local value = redis.call('GET', KEYS[2])
local mine = ARGV[1] .. ':'
if not value or (ARGV[2] == '' and string.sub(value, 1, #mine) ~= mine) then
  return {ARGV[1], 'GONE'}
end
redis.call('DEL', KEYS[2])
redis.pcall('ZREM', KEYS[1], string.sub(KEYS[2], #KEYS[1] + 1)) -- as in ``mark``
return {ARGV[1], 'UNMARKED', 1}
