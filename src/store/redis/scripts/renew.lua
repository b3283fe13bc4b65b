-- renew.lua: extends the lease of a token that holds all of these locks under this fence, and of no
-- other (rules: LockTable::renew).
-- Argument: token, ttl (ms), fence (none: of any grant), rest (what keeps the lock now; none: as before), prefix of
--        the locks' names.
-- Replies: renewed · asked (renewed, and an operator asks it to end) · superseded (renewed, and a
--        newer run with --replace asks that) · revoked · not-held.
-- Why atomic: compare and extend; and a lock that has run out is granted to the next waiter at
-- once.

local token = arg.token
write_first()
local locks = named(token)
for _, lock in ipairs(locks) do expire(lock) end
local is_held = held_everywhere(locks, token)
for _, lock in ipairs(locks) do is_held = is_held and is_of_grant(hold_of(lock, token), arg.fence) end
local outcome = 'not-held'
if is_held then
  for _, lock in ipairs(locks) do
    local hold = hold_of(lock, token)
    if not hold.confirmed then
      confirm(lock, hold)
      redis.call('DEL', waiter_key(lock, token))
    end
    hold['until'], hold.renewed = ms + arg.ttl, hold.pause_on_failure ~= nil or nil
    hold.owner.rest = arg.rest or hold.owner.rest
    save(lock, token, hold)
    if not hold.asked then
      if outcome == 'not-held' then outcome = 'renewed' end
    elseif outcome ~= 'asked' then
      outcome = hold.superseded and 'superseded' or 'asked'
    end
  end
else
  for _, lock in ipairs(locks) do
    if is_revoked_from(lock, token) then outcome = 'revoked' end
  end
end
grant_next(worklist(locks), token)
tell()
return answer(outcome)
