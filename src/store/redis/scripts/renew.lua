-- renew.lua: extends the lease of a token that holds all of these locks, and of no other (rules:
-- LockTable::renew).
-- ARGV: token, ttl ms.
-- Replies: {'renewed', now us} · {'asked', now us} (renewed, and an operator asks it to end) ·
--        {'superseded', now us} (renewed, and a newer run with --replace asks that) · {'revoked',
--        now us} · {'not-held', now us}.
-- Why atomic: compare and extend; and a lock that has run out is granted to the next waiter at
-- once.

local token, ttl = ARGV[1], tonumber(ARGV[2])
write_first()
local locks = named(token)
for _, lock in ipairs(locks) do expire(lock) end
local answer = 'not-held'
if held_everywhere(locks, token) then
  for _, lock in ipairs(locks) do
    local hold = hold_of(lock, token)
    if not hold.confirmed then
      confirm(lock, hold)
      redis.call('DEL', waiter_key(lock, token))
    end
    hold['until'] = ms + ttl
    save(lock, token, hold)
    if hold.asked == '' then
      if answer == 'not-held' then answer = 'renewed' end
    elseif answer ~= 'asked' then
      answer = hold.word == 'superseded' and 'superseded' or 'asked'
    end
  end
else
  for _, lock in ipairs(locks) do
    if is_revoked_from(lock, token) then answer = 'revoked' end
  end
end
grant_next(worklist(locks), token)
tell()
return { answer, int(us) }
