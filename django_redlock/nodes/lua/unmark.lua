-- Remove the mark of a queued task, or the completion record of one that has finished.
-- KEYS marks, mark or lock        ARGV nonce, whose
-- Only the mark of this nonce if ``whose`` is "", that of whatever nonce if it is the id of the mark,
-- and any mark if it is "anybody's", which is no id. A record has no nonce: only the id removes it.
-- Returns nonce, UNMARKED, 1 | nonce, GONE
local value = redis.call('GET', KEYS[2])
local nonce, id = string.match(value or '', '^(%x+):%d+:([%w_.-]+)$')
if not id then id = string.match(value or '', '^done::.*%([^():]+%):([%w_.-]+)$') end
if not value or (ARGV[2] == '' and nonce ~= ARGV[1]) or (ARGV[2] ~= '' and ARGV[2] ~= "anybody's" and id ~= ARGV[2]) then
  return {ARGV[1], 'GONE'}
end
redis.call('DEL', KEYS[2])
redis.pcall('ZREM', KEYS[1], string.sub(KEYS[2], #KEYS[1] + 1)) -- as in ``mark``
return {ARGV[1], 'UNMARKED', 1}
