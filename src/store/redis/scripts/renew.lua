-- renew.lua: extends the lease of the token that the lock key names, and of no other (law: Record::renew).
-- ARGV: token, ttl ms.
-- Replies: {'renewed', now us} · {'revoked', now us} · {'not-held', now us}.
-- Why atomic: compare and extend; and a lock found to have run out goes to the next waiter in the same step.

local token, ttl = ARGV[1], tonumber(ARGV[2])
write_first()
load(token)
expire()
local answer = 'not-held'
if is_held_by(token) then
  hold.confirmed, hold['until'] = true, ms + ttl
  save_hold()
  answer = 'renewed'
elseif is_revoked_from(token) then
  answer = 'revoked'
end
serve(token)
return { answer, int(us) }
