//! [`Callbacks`]: up to four closures in place of an implementation of [`Hooks`].

use core::fmt;

use super::{Detached, Discarded, Hooks, Recipient};

/// The closures that were set with `on_error`, `on_unmatched`, `on_discarded` and `admit`.
///
/// `()` stands for a closure that was not set. The methods of [`Demux`](crate::Demux) create this
/// type; it implements [`Hooks`].
#[derive(Clone, Copy, Default)]
pub struct Callbacks<E = (), U = (), D = (), A = ()> {
    on_error: E,
    on_unmatched: U,
    on_discarded: D,
    admit: A,
}

impl<E, U, D, A> Callbacks<E, U, D, A> {
    pub(crate) fn with_on_error<C>(self, on_error: C) -> Callbacks<C, U, D, A> {
        let Self { on_error: _, on_unmatched, on_discarded, admit } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }

    pub(crate) fn with_on_unmatched<C>(self, on_unmatched: C) -> Callbacks<E, C, D, A> {
        let Self { on_error, on_unmatched: _, on_discarded, admit } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }

    pub(crate) fn with_on_discarded<C>(self, on_discarded: C) -> Callbacks<E, U, C, A> {
        let Self { on_error, on_unmatched, on_discarded: _, admit } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }

    pub(crate) fn with_admit<C>(self, admit: C) -> Callbacks<E, U, D, C> {
        let Self { on_error, on_unmatched, on_discarded, admit: _ } = self;
        Callbacks { on_error, on_unmatched, on_discarded, admit }
    }
}

impl<E, U, D, A> fmt::Debug for Callbacks<E, U, D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

impl<K, V, X, E, U, D, A> Hooks<K, V, X> for Callbacks<E, U, D, A>
where
    E: closure::OnError<K, X>,
    U: closure::OnUnmatched<V>,
    D: closure::OnDiscarded<K, V>,
    A: closure::Admit<K, V>,
{
    #[inline]
    fn admit(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
        self.admit.ask(to, item)
    }
    #[inline]
    fn detached(&mut self, to: Recipient<'_, K>, why: Detached<X>) {
        if let Detached::Failed(error) = why {
            self.on_error.call(to, error);
        }
    }
    #[inline]
    fn unmatched(&mut self, item: V) {
        self.on_unmatched.call(item);
    }
    #[inline]
    fn discarded(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {
        self.on_discarded.call(to, item, why);
    }
}

/// A closure or none, for each of the four: sealed, because they exist only so that one
/// [`Callbacks`] serves every combination.
mod closure {
    use super::{Discarded, Recipient};

    pub trait OnError<K, E> {
        fn call(&mut self, to: Recipient<'_, K>, error: E);
    }
    impl<K, E> OnError<K, E> for () {
        fn call(&mut self, _: Recipient<'_, K>, _: E) {}
    }
    impl<K, E, F: FnMut(Recipient<'_, K>, E)> OnError<K, E> for F {
        fn call(&mut self, to: Recipient<'_, K>, error: E) {
            self(to, error);
        }
    }

    pub trait OnUnmatched<V> {
        fn call(&mut self, item: V);
    }
    impl<V> OnUnmatched<V> for () {
        #[inline]
        fn call(&mut self, _: V) {}
    }
    impl<V, F: FnMut(V)> OnUnmatched<V> for F {
        #[inline]
        fn call(&mut self, item: V) {
            self(item);
        }
    }

    pub trait OnDiscarded<K, V> {
        fn call(&mut self, to: Recipient<'_, K>, item: V, why: Discarded);
    }
    impl<K, V> OnDiscarded<K, V> for () {
        #[inline]
        fn call(&mut self, _: Recipient<'_, K>, _: V, _: Discarded) {}
    }
    impl<K, V, F: FnMut(Recipient<'_, K>, V, Discarded)> OnDiscarded<K, V> for F {
        #[inline]
        fn call(&mut self, to: Recipient<'_, K>, item: V, why: Discarded) {
            self(to, item, why);
        }
    }

    pub trait Admit<K, V> {
        fn ask(&mut self, to: Recipient<'_, K>, item: &V) -> bool;
    }
    impl<K, V> Admit<K, V> for () {
        #[inline]
        fn ask(&mut self, _: Recipient<'_, K>, _: &V) -> bool {
            true
        }
    }
    impl<K, V, F: FnMut(Recipient<'_, K>, &V) -> bool> Admit<K, V> for F {
        #[inline]
        fn ask(&mut self, to: Recipient<'_, K>, item: &V) -> bool {
            self(to, item)
        }
    }
}
