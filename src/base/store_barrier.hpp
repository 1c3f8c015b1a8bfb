/// A barrier that only the rare side pays for: whoever is about to sleep makes the stores of all others land, so that
/// those who store often need no fence between a store and their look at whether somebody sleeps.
///
/// The rare side: stores "I sleep", calls `wait_for_stores_of_others`, looks for what it waits for. The frequent side:
/// stores, then loads "does it sleep" (in this order in the code: a signal fence). Either the first sees the store, or
/// the second sees the sleeper.
#pragma once

namespace railyard {

/// Makes this process one of the `others`. Once before it stores is enough.
void allow_waiting_for_stores();
/// Every store that a thread of such a process made before this call is seen after it.
void wait_for_stores_of_others();

}  // namespace railyard
