-- revoke.lua: takes this master away from its holder.
-- Argument: when ('safe' or 'now'), by (the operator).
-- Replies {left (ms), seen (as in acquire.lua, before)}, what was there: free · hold · cooling ·
--        revoked · foreign (left alone) · foreign-deleted.
-- Why atomic: it acts on the hold that it shows, not on a later one.

local now = arg.when == 'now'
write_first()
local lock = named()[1]
expire(lock)
local was, remains, what = obstacle(lock), 0, lock.kind

local token = lock.token
if lock.kind == 'exclusive' then
  local hold = hold_of(lock, token)
  if ms >= hold['until'] then
    what = 'cooling'
    finish(lock, token, 'expired')
    free(lock)
  elseif not hold.confirmed then
    -- An attempt without a majority yet: no job runs under it, and it may try again.
    what = 'free'
    drop_hold(lock, token)
  else
    what = 'hold'
    finish(lock, token, 'forced', nil, arg.by)
    if now then
      spend(lock, token, '0')
      free(lock)
    else
      local due = hold['until']
      hold.phase, lock.kind, lock.token = 'revoked', 'revoked', nil
      save(lock, token, hold)
      mark(lock, 'revoked', due)
      remains = left(due)
    end
  end
elseif lock.kind == 'cooling' then
  free(lock)
elseif lock.kind == 'revoked' then
  if now then
    for _, one in ipairs(all_holds(lock)) do
      spend(lock, one.token, '0')
      erase(lock, one.token, one.hold)
    end
    free(lock)
  else
    remains = left(lock['until'])
  end
elseif lock.kind == 'foreign' and now and lock.foreign_type == 'string' then
  free(lock)
  what = 'foreign-deleted'
end
return answer(what, { left = remains, seen = was })
