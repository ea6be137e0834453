//! Addresses at which metadata is looked for, in their order.

use url::Url;

const RESOURCE: &str = "oauth-protected-resource";
const SERVER: &str = "oauth-authorization-server";
const OPENID: &str = "openid-configuration";

/// The metadata of a protected resource (RFC 9728, section 3.1): with the path of the resource behind the well-known
/// one, then that of the whole host.
pub fn of_resource(resource: &Url) -> Vec<Url> {
    let path = if resource.path() == "/" { "" } else { resource.path() };
    let own = at(resource, &format!("/.well-known/{RESOURCE}{path}"), resource.query());
    let root = at(resource, &format!("/.well-known/{RESOURCE}"), None);
    if own == root { vec![root] } else { vec![own, root] }
}

/// The metadata of an authorization server: as RFC 8414, section 3.1, has it, then as OpenID Connect Discovery does,
/// with the issuer's path inserted and appended.
pub fn of_issuer(issuer: &Url) -> Vec<Url> {
    let path = issuer.path().trim_end_matches('/');
    let inserted = |name: &str| at(issuer, &format!("/.well-known/{name}{path}"), None);
    let mut addresses = vec![inserted(SERVER), inserted(OPENID)];
    if !path.is_empty() {
        addresses.push(at(issuer, &format!("{path}/.well-known/{OPENID}"), None));
    }
    addresses
}

fn at(base: &Url, path: &str, query: Option<&str>) -> Url {
    let mut address = base.clone();
    address.set_path(path);
    address.set_query(query);
    address.set_fragment(None);
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(addresses: Vec<Url>) -> Vec<String> {
        addresses.into_iter().map(String::from).collect()
    }

    fn resource(text: &str) -> Vec<String> {
        texts(of_resource(&Url::parse(text).unwrap()))
    }

    fn issuer(text: &str) -> Vec<String> {
        texts(of_issuer(&Url::parse(text).unwrap()))
    }

    #[test]
    fn metadata_of_a_resource_is_looked_for_below_its_path_and_then_at_the_root() {
        let root = "https://mcp.example.org/.well-known/oauth-protected-resource";
        assert_eq!(resource("https://mcp.example.org/mcp"), [format!("{root}/mcp"), root.into()]);
        assert_eq!(resource("https://mcp.example.org/a/b?c=d"), [format!("{root}/a/b?c=d"), root.into()]);
        assert_eq!(resource("https://mcp.example.org"), [root]);
        let port = "http://127.0.0.1:9000/.well-known/oauth-protected-resource";
        assert_eq!(resource("http://127.0.0.1:9000/mcp/"), [format!("{port}/mcp/"), port.into()]);
    }

    #[test]
    fn metadata_of_an_issuer_is_looked_for_as_oauth_has_it_and_then_as_openid_does() {
        let at = "https://id.example.org";
        let root =
            [format!("{at}/.well-known/oauth-authorization-server"), format!("{at}/.well-known/openid-configuration")];
        assert_eq!((issuer(at), issuer(&format!("{at}/"))), (root.to_vec(), root.to_vec()));
        let below = [
            format!("{at}/.well-known/oauth-authorization-server/realms/a"),
            format!("{at}/.well-known/openid-configuration/realms/a"),
            format!("{at}/realms/a/.well-known/openid-configuration"),
        ];
        assert_eq!(
            (issuer(&format!("{at}/realms/a")), issuer(&format!("{at}/realms/a/"))),
            (below.to_vec(), below.to_vec())
        );
    }
}
