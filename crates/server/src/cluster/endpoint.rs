//! The address of a node, in the form that suits a client: its protocol, TLS or not, and
//! `cluster-preferred-endpoint-type`.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_client::clients::ClientInfo;
use evenkeel_cluster::{Address, NodeId};
use evenkeel_config::EndpointType;

use super::view::ClusterView;

/// The properties of a client's connection on which addresses depend.
pub(crate) struct Viewpoint {
    /// The address at which the client reached this server; `None` over a Unix socket.
    local: Option<IpAddr>,
    has_tls: bool,
}

impl Viewpoint {
    pub(crate) fn of(client: &ClientInfo) -> Viewpoint {
        let local =
            client.local_address.parse::<SocketAddr>().ok().map(|address| address.ip().to_canonical());
        Viewpoint { local, has_tls: client.tls_size.load(Relaxed) > 0 }
    }
}

/// A node's address for a client.
pub(crate) struct Endpoint<'a> {
    pub(crate) ip: Cow<'a, str>,
    pub(crate) port: u16,
    pub(crate) hostname: &'a str,
    /// The availability zone.
    pub(crate) zone: &'a str,
}

impl<'a> Endpoint<'a> {
    /// Returns the address of a node of the map. If this node's own address is not known, it is the address
    /// at which the client has reached it.
    pub(crate) fn of(view: &'a ClusterView, id: NodeId, from: &Viewpoint) -> Option<Endpoint<'a>> {
        let address = view.address_of(id)?;
        let mut ip = Cow::Borrowed(ip_for(address, from.local));
        if ip.is_empty() && id == view.me {
            ip = from.local.map_or(Cow::Borrowed(""), |local| Cow::Owned(local.to_string()));
        }
        Some(Endpoint {
            ip,
            port: port_for(address, from.has_tls),
            hostname: &address.hostname,
            zone: &address.zone,
        })
    }

    /// Returns the preferred address; `None`: clients use the address at which they have reached this node.
    pub(crate) fn preferred(&self, kind: EndpointType) -> Option<&str> {
        match kind {
            EndpointType::Ip => Some(&self.ip),
            EndpointType::HostName if self.hostname.is_empty() => Some("?"),
            EndpointType::HostName => Some(self.hostname),
            EndpointType::Unknown => None,
        }
    }
}

fn ip_for(address: &Address, local: Option<IpAddr>) -> &str {
    let own = match local {
        Some(IpAddr::V4(_)) => &address.client_ipv4,
        Some(IpAddr::V6(_)) => &address.client_ipv6,
        None => &address.ip,
    };
    if own.is_empty() { &address.ip } else { own }
}

fn port_for(address: &Address, has_tls: bool) -> u16 {
    match (has_tls, address.client_tls_port, address.client_port) {
        (true, 0, _) => address.tls_port,
        (true, port, _) => port,
        (false, _, 0) => address.port,
        (false, _, port) => port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address { ip: "10.0.0.1".into(), port: 1, tls_port: 2, ..Address::default() }
    }

    #[test]
    fn a_client_gets_the_address_of_its_protocol() {
        let announced =
            Address { client_ipv4: "1.1.1.1".into(), client_port: 3, client_tls_port: 4, ..address() };
        let [v4, v6] = ["127.0.0.1", "::1"].map(|ip| ip.parse::<IpAddr>().ok());
        assert_eq!(
            [v4, v6, None].map(|local| ip_for(&announced, local)),
            ["1.1.1.1", "10.0.0.1", "10.0.0.1"]
        );
        assert_eq!([false, true].map(|has_tls| port_for(&announced, has_tls)), [3, 4]);
        assert_eq!([false, true].map(|has_tls| port_for(&address(), has_tls)), [1, 2]);
    }

    #[test]
    fn the_preferred_form_decides() {
        let endpoint = |hostname| Endpoint { ip: "10.0.0.1".into(), port: 1, hostname, zone: "" };
        let kinds = [EndpointType::Ip, EndpointType::HostName, EndpointType::Unknown];
        let forms = |endpoint: Endpoint<'_>| kinds.map(|kind| endpoint.preferred(kind).map(str::to_owned));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(forms(endpoint("host")), [some("10.0.0.1"), some("host"), None]);
        assert_eq!(forms(endpoint("")), [some("10.0.0.1"), some("?"), None]);
    }
}
