package cdcworker;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.rest.HTTPClient;
import org.apache.iceberg.rest.ImmutableRemoteSigningConfig;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.rest.RESTClient;
import org.apache.iceberg.rest.RESTResponse;
import org.apache.iceberg.rest.RESTUtil;
import org.apache.iceberg.rest.RemoteSigningConfig;
import org.apache.iceberg.rest.credentials.Credential;
import org.apache.iceberg.rest.credentials.ImmutableCredential;
import org.apache.iceberg.rest.responses.LoadTableResponse;

/**
 * Iceberg's REST catalog with answers that the sink's process has judged: Iceberg gets the properties that the server may set, and
 * no table whose files lie at a closed place.
 *
 * It is compiled by Spark's own compiler, which knows no type parameters: hence the casts.
 */
public final class CheckedCatalog extends RESTCatalog {
    public CheckedCatalog() {
        super(new Clients());
    }

    public static final class Clients implements Function {
        public Object apply(Object given) {
            Map properties = (Map) given;
            HTTPClient.Builder builder = HTTPClient.builder(properties).uri((String) properties.get("uri"));
            return Answers.of(builder.withHeaders(RESTUtil.configHeaders(properties)).build());
        }
    }

    public static final class Answers implements InvocationHandler {
        private static final String[] PLACES = {
            "write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"
        };
        private final RESTClient client;

        private Answers(RESTClient client) {
            this.client = client;
        }

        public static RESTClient of(RESTClient client) {
            Class[] kinds = {RESTClient.class};
            return (RESTClient) Proxy.newProxyInstance(RESTClient.class.getClassLoader(), kinds, new Answers(client));
        }

        public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
            Object found;
            try {
                found = method.invoke(client, arguments);
            } catch (InvocationTargetException exc) {
                throw exc.getTargetException();
            }
            if (found instanceof RESTClient) {
                return of((RESTClient) found);
            }
            if (found instanceof RESTResponse) {
                check(found);
            }
            return found;
        }

        /** Puts what was judged into every member by which an answer sets properties, whatever kind of answer it is. */
        private static void check(Object answer) throws IllegalAccessException {
            for (Class kind = answer.getClass(); kind != null && kind != Object.class; kind = kind.getSuperclass()) {
                Field[] fields = kind.getDeclaredFields();
                for (int i = 0; i < fields.length; i++) {
                    if (!Modifier.isStatic(fields[i].getModifiers()) && !fields[i].getType().isPrimitive()) {
                        check(answer, fields[i]);
                    }
                }
            }
            if (answer instanceof LoadTableResponse) {
                checkPlaces((LoadTableResponse) answer);
            }
        }

        private static void check(Object answer, Field field) throws IllegalAccessException {
            String name = field.getName();
            field.setAccessible(true);
            Object value = field.get(answer);
            if (value instanceof RemoteSigningConfig) {
                RemoteSigningConfig signing = (RemoteSigningConfig) value;
                Map judged = judged(signing.properties());
                field.set(answer, ImmutableRemoteSigningConfig.builder().from(signing).properties(judged).build());
            } else if (value instanceof Map && (name.equals("config") || name.equals("defaults") || name.equals("overrides"))) {
                field.set(answer, judged((Map) value));
            } else if (value instanceof List && name.equals("credentials")) {
                List judged = new ArrayList();
                for (Iterator each = ((List) value).iterator(); each.hasNext();) {
                    Credential one = (Credential) each.next();
                    judged.add(ImmutableCredential.builder().prefix(one.prefix()).config(judged(one.config())).build());
                }
                field.set(answer, judged);
            }
        }

        private static Map judged(Map properties) {
            if (properties.isEmpty()) {
                return properties;
            }
            Map question = new HashMap();
            question.put("properties", properties);
            return (Map) CheckedHosts.ask(question).get("properties");
        }

        private static void checkPlaces(LoadTableResponse answer) {
            Set places = new HashSet();
            places.add(answer.metadataLocation());
            places.add(answer.tableMetadata().location());
            for (int i = 0; i < PLACES.length; i++) {
                places.add(answer.tableMetadata().properties().get(PLACES[i]));
            }
            for (Iterator each = answer.tableMetadata().snapshots().iterator(); each.hasNext();) {
                places.add(((Snapshot) each.next()).manifestListLocation());
            }
            places.remove(null);
            Map question = new HashMap();
            question.put("places", new ArrayList(places));
            CheckedHosts.ask(question);
        }
    }
}
