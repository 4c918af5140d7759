-- List one page of the index of held names.
-- KEYS held                       ARGV nonce, most, from
-- Names that are due at ``from`` (milliseconds) or later, the first due first, at most ``most``.
-- The next page begins where this one ends, with its last names again if they are due in the same
-- millisecond.
-- Returns nonce, LISTED, [name …], where the next page begins (0: there is none)
local t = redis.call('TIME')
local from = math.max(t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[3]))
local most = tonumber(ARGV[2])
local found = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', from), '+inf',
  'WITHSCORES', 'LIMIT', 0, most + 1)
local names, after = {}, 0
for i = 1, #found, 2 do
  if #names < most then
    names[#names + 1] = found[i]
  else
    after = math.min(tonumber(found[i + 1]), 2^53)
  end
end
return {ARGV[1], 'LISTED', names, after}
