import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerExtensionsValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/** Has a broker ask a test whether a token is good, and answers a client as a managed service does: in words. */
public class TokenValidator implements AuthenticateCallbackHandler {
    /** The jar is an agent of Java only because one is added to the class path. */
    public static void premain(String arguments) {}

    @Override
    public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

    @Override
    public void handle(Callback[] callbacks) throws IOException, UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (callback instanceof OAuthBearerValidatorCallback) {
                validate((OAuthBearerValidatorCallback) callback);
            } else if (!(callback instanceof OAuthBearerExtensionsValidatorCallback)) {
                throw new UnsupportedCallbackException(callback);
            }
        }
    }

    private void validate(OAuthBearerValidatorCallback callback) throws IOException {
        String token = callback.tokenValue();
        URI address = URI.create(System.getProperty("token.validator"));
        HttpURLConnection connection = (HttpURLConnection) address.toURL().openConnection();
        connection.setDoOutput(true);
        connection.getOutputStream().write(token.getBytes(StandardCharsets.UTF_8));
        boolean good = connection.getResponseCode() == 200;
        byte[] answer = (good ? connection.getInputStream() : connection.getErrorStream()).readAllBytes();
        String text = new String(answer, StandardCharsets.UTF_8);
        if (!good) {
            throw new SaslAuthenticationException(text);
        }
        String[] accepted = text.split(" ");
        callback.token(new Accepted(token, accepted[0], Long.parseLong(accepted[1])));
    }

    @Override
    public void close() {}

    private record Accepted(String value, String principalName, long lifetimeMs) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }
}
