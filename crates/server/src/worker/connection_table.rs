//! A worker's connections, by token.

use crate::worker::connection::Connection;

/// Connections by token. The lower half of a token is an index; the upper half is the generation of the
/// index, which distinguishes a connection from earlier connections at the same index. Its highest bit is
/// zero, so a connection's token never equals that of a listener.
#[derive(Default)]
pub(super) struct ConnectionTable {
    /// `None`: vacant, or the connection is being served.
    connections: Vec<Option<Box<Connection>>>,
    generations: Vec<u32>,
    vacant: Vec<usize>,
}

impl ConnectionTable {
    /// Returns the token of a vacant place, for a connection that is put there later.
    pub(super) fn reserve(&mut self) -> u64 {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.generations.push(0);
            self.connections.len() - 1
        });
        self.begin_generation(index);
        self.token(index)
    }

    /// Frees the place of a connection that was taken out, or never put there. Its token is not valid any
    /// more.
    pub(super) fn free(&mut self, token: u64) {
        let index = index_of(token);
        self.begin_generation(index);
        self.vacant.push(index);
    }

    /// Takes a connection out, to serve it. Returns `None` if it is being served, or is gone.
    pub(super) fn take(&mut self, token: u64) -> Option<Box<Connection>> {
        let index = self.valid_index(token)?;
        self.connections[index].take()
    }

    pub(super) fn put_back(&mut self, token: u64, connection: Box<Connection>) {
        self.connections[index_of(token)] = Some(connection);
    }

    /// Returns a connection that is not being served.
    pub(super) fn get(&self, token: u64) -> Option<&Connection> {
        self.connections[self.valid_index(token)?].as_deref()
    }

    /// Like [`ConnectionTable::get`], to change the connection.
    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut Connection> {
        let index = self.valid_index(token)?;
        self.connections[index].as_deref_mut()
    }

    /// Returns the tokens of all connections that are not being served.
    pub(super) fn tokens(&self) -> Vec<u64> {
        let is_there = |index: &usize| self.connections[*index].is_some();
        (0..self.connections.len()).filter(is_there).map(|index| self.token(index)).collect()
    }

    /// Returns the number of places, vacant places included.
    pub(super) fn places(&self) -> usize {
        self.connections.len()
    }

    /// Returns the present token of the place with this index, which is below [`ConnectionTable::places`].
    pub(super) fn token(&self, index: usize) -> u64 {
        u64::from(self.generations[index]) << 32 | index as u64
    }

    /// Returns the index of a token whose connection is not gone.
    fn valid_index(&self, token: u64) -> Option<usize> {
        let index = index_of(token);
        (self.generations.get(index).copied() == Some((token >> 32) as u32)).then_some(index)
    }

    fn begin_generation(&mut self, index: usize) {
        self.generations[index] = self.generations[index].wrapping_add(1) & 0x7fff_ffff;
    }
}

fn index_of(token: u64) -> usize {
    token as u32 as usize
}
