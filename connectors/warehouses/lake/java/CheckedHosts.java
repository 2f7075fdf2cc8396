package cdcworker;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Proxy;
import java.net.ProxySelector;
import java.net.SocketAddress;
import java.net.URI;
import java.net.UnixDomainSocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Asks the sink's process whether a host may be reached, at each connection that a client in this JVM opens. Java asks
 * its selector of proxies right before it connects a socket, with the host's name. The addresses are those that the client
 * got: Java keeps them, and whoever judges keeps what was refused.
 *
 * It is compiled by Spark's own compiler, which knows no type parameters: hence the casts.
 */
public final class CheckedHosts extends ProxySelector {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static volatile String socket = "";

    private final ProxySelector before;

    public CheckedHosts() {
        this(null);
    }

    private CheckedHosts(ProxySelector before) {
        this.before = before;
    }

    /** From here on each connection is judged by who listens at the socket's path. */
    public void install(String path) {
        socket = path;
        ProxySelector known = ProxySelector.getDefault();
        if (!(known instanceof CheckedHosts)) {
            ProxySelector.setDefault(new CheckedHosts(known));
        }
    }

    public List select(URI uri) {
        String host = hostOf(uri);
        List addresses = new ArrayList();
        try {
            InetAddress[] found = InetAddress.getAllByName(host);
            for (int i = 0; i < found.length; i++) {
                addresses.add(found[i].getHostAddress());
            }
        } catch (UnknownHostException exc) {
            // A proxy may know it.
        }
        Map question = new HashMap();
        question.put("host", host);
        question.put("port", Integer.valueOf(uri.getPort()));
        question.put("addresses", addresses);
        ask(question);
        return before == null ? Collections.singletonList(Proxy.NO_PROXY) : before.select(uri);
    }

    public void connectFailed(URI uri, SocketAddress address, IOException exc) {
        if (before != null) {
            before.connectFailed(uri, address, exc);
        }
    }

    private static String hostOf(URI uri) {
        String host = uri.getHost();
        if (host == null) {
            // A name that is none by the rules of URIs, such as one with an underscore.
            host = uri.getRawAuthority() == null ? "" : uri.getRawAuthority().replaceFirst(":[0-9]*$", "");
        }
        return host.startsWith("[") ? host.substring(1, host.length() - 1) : host;
    }

    /** Returns the answer to a question. What is refused, and what nobody answers, ends in an exception. */
    public static Map ask(Map question) {
        Map answer;
        try {
            SocketChannel channel = SocketChannel.open(UnixDomainSocketAddress.of(socket));
            try {
                ByteBuffer out = ByteBuffer.wrap(JSON.writeValueAsBytes(question));
                while (out.hasRemaining()) {
                    channel.write(out);
                }
                channel.shutdownOutput();
                ByteArrayOutputStream in = new ByteArrayOutputStream();
                ByteBuffer part = ByteBuffer.allocate(8192);
                while (channel.read(part) >= 0) {
                    in.write(part.array(), 0, part.position());
                    part.clear();
                }
                answer = (Map) JSON.readValue(in.toByteArray(), Map.class);
            } finally {
                channel.close();
            }
        } catch (IOException exc) {
            throw new IllegalStateException("cdcworker does not answer whether this is allowed");
        }
        if (answer.get("refused") != null) {
            throw new IllegalArgumentException("cdcworker refuses " + answer.get("refused"));
        }
        return answer;
    }
}
