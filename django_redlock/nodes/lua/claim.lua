-- Take the wake-up that no waiter has taken from the queue.
-- KEYS queue                      ARGV nonce
-- Returns nonce, CLAIMED, the wake-up or ""
return {ARGV[1], 'CLAIMED', redis.call('LPOP', KEYS[1]) or ''}
