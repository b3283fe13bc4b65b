-- revoke.lua: takes this master away from whoever has it.
-- ARGV: 'safe' or 'now', who does it (JSON).
-- Replies: {what was there, …, left ms, blocker as it was…}, what being 'free', 'hold', 'cooling', 'revoked', 'foreign'
-- (left alone) or 'foreign-deleted'.
-- Why atomic: it acts on the hold that it shows, not on one that came in between.

local now, by = ARGV[1] == 'now', ARGV[2]
write_first()
load()
expire()
local was, remains, what = blocker(), 0, lock

local function spend(token) redis.call('SET', spent_key(token), '0', 'PX', SPENT_KEPT) end

if lock == 'cooling' then
  free()
elseif lock == 'held' and ms >= hold['until'] then
  finish('expired')
  free()
  what = 'cooling'
elseif lock == 'held' and not hold.confirmed then
  -- Somebody is trying to get a majority and has not got it: no job runs under this, and it may try again.
  forget_hold()
  free()
  what = 'free'
elseif lock == 'held' then
  what = 'hold'
  local held = hold
  finish('forced', nil, by)
  if now then
    spend(held.token)
    free()
  else
    hold = held
    hold.forced = true
    local due = hold['until']
    save_hold()
    put('dlock/revoked:' .. int(due), 'revoked', due)
    remains = left(lock_until)
  end
elseif lock == 'revoked' then
  remains = left(lock_until)
  if now then
    remains = 0
    if hold then
      spend(hold.token)
      forget_hold()
    end
    free()
  end
elseif lock == 'foreign' and now and foreign_type == 'string' then
  free()
  what = 'foreign-deleted'
end
return answer(what, int(remains), unpack(was))
