//! Values that are computed once, whoever asks first, while others are computed at the same time. It knows no value.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values by key.
#[derive(Debug)]
pub(crate) struct OnceMap<K, V> {
    cells: Mutex<HashMap<K, Cell<V>>>,
}

/// A value, or none yet.
type Cell<V> = Arc<Mutex<Option<V>>>;

impl<K, V> Default for OnceMap<K, V> {
    fn default() -> Self {
        Self { cells: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone> OnceMap<K, V> {
    /// The value of `key`, computed by the first who asks; who asks meanwhile waits, for this key only. What is not to be kept is computed
    /// again for who asks next.
    pub fn get(&self, key: K, is_kept: impl FnOnce(&V) -> bool, compute: impl FnOnce() -> V) -> V {
        let cell = Arc::clone(lock(&self.cells).entry(key).or_default());
        let mut kept = lock(&cell);
        if let Some(value) = &*kept {
            return value.clone();
        }
        let value = compute();
        *kept = is_kept(&value).then(|| value.clone());
        value
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves only whole entries.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn different_values_are_computed_at_the_same_time_and_each_once() {
        let (map, both) = (OnceMap::default(), Barrier::new(2));
        std::thread::scope(|scope| {
            for key in [1, 2] {
                let (map, both) = (&map, &both);
                // Neither gets on before the other is computed, too.
                scope.spawn(move || {
                    let compute = || {
                        both.wait();
                        10 * key
                    };
                    assert_eq!(map.get(key, |_| true, compute), 10 * key);
                });
            }
        });
        assert_eq!(map.get(1, |_| true, || unreachable!("it is there")), 10);
    }

    #[test]
    fn what_is_not_to_be_kept_is_computed_again() {
        let map = OnceMap::default();
        let get = |value: i32| map.get("key", |value| *value > 0, || value);
        assert_eq!([-1, -2, 3, 4].map(get), [-1, -2, 3, 3]);
    }
}
