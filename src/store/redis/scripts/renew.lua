-- renew.lua: extends the lease of the token that the lock key names, and of no other (law: Record::renew).
-- ARGV: token, ttl ms.
-- Replies: {'renewed', now us} · {'revoked', now us} · {'not-held', now us}.
-- Why atomic: compare and extend; and a lock found to have run out goes to the next waiter in the same step.

local token, ttl = ARGV[1], tonumber(ARGV[2])
write_first()
local value = load()
expire()
local answer = 'not-held'
if is_held_by(token) then
  hold['until'] = ms + ttl
  lock_until = math.max(hold['until'], hold.cool)
  redis.call('HSET', HOLD, 'until', int(hold['until']))
  redis.call('PEXPIREAT', L, int(lock_until))
  answer = 'renewed'
elseif lock == 'foreign' and value == token then
  -- The lock key is the truth (I12): an evicted HOLD does not end a hold.
  redis.call('PEXPIREAT', L, int(ms + ttl))
  answer = 'renewed'
elseif is_revoked_from(token) then
  answer = 'revoked'
end
serve(token)
return { answer, int(us) }
