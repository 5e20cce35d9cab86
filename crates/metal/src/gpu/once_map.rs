//! Values that are computed once, whoever asks first, while others are computed at the same time. It knows no value.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Values by key.
#[derive(Debug)]
pub(crate) struct OnceMap<K, V> {
    cells: Mutex<HashMap<K, Arc<OnceLock<V>>>>,
}

impl<K, V> Default for OnceMap<K, V> {
    fn default() -> Self {
        Self { cells: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone> OnceMap<K, V> {
    /// The value of `key`, computed by the first who asks; who asks meanwhile waits, for this key only.
    pub fn get(&self, key: K, compute: impl FnOnce() -> V) -> V {
        // A panic elsewhere leaves only whole entries.
        let cell = Arc::clone(self.cells.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        cell.get_or_init(compute).clone()
    }
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
                    let value = map.get(key, || {
                        both.wait();
                        10 * key
                    });
                    assert_eq!(value, 10 * key);
                });
            }
        });
        assert_eq!(map.get(1, || unreachable!("it is there")), 10);
    }
}
