-- KEYS queue                      ARGV nonce
-- Takes the word that nobody who waits has taken.
-- Returns nonce, CLAIMED, the word or ""
return {ARGV[1], 'CLAIMED', redis.call('LPOP', KEYS[1]) or ''}
